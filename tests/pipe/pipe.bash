# Helpers of the pipe tests. Programs come from PATH, the model is the default one.

# An answer without its times: the part that must be equal in two runs.
answers() {
    jq -cS 'del(.timings)'
}

# run_pipe [prefill options --] : frames on stdin, answers as JSON on stdout
pipe() {
    prefill "$@" | decode | stream --jsonl | answers
}

# Seven requests that use most fields: greedy and sampled, log-probabilities, echo, stops, penalties, masks.

requests() {
    cat <<'J'
{"id":"greedy","messages":[{"role":"user","content":"What is the capital of France?"}],"max_tokens":24,"logprobs":3}
{"id":"echo","prompt":"Once upon a time there was a small village near the sea, where the fishermen went out every morning before dawn. One day the youngest of them did not come back, and","max_tokens":24,"logprobs":2,"echo":true}
{"id":"sampled","prompt":"The three laws of robotics are","max_tokens":24,"temperature":0.9,"top_p":0.95,"seed":7,"logprobs":1}
{"id":"penalties","prompt":"A gentle rain, a gentle rain, a gentle rain,","max_tokens":24,"temperature":1.2,"top_k":40,"min_p":0.02,"seed":"18446744073709551615","repetition_penalty":1.3,"presence_penalty":0.2,"frequency_penalty":0.1,"logprobs":0}
{"id":"typical","prompt":"A gentle rain, a gentle rain, a gentle rain,","max_tokens":24,"temperature":1.1,"typical_p":0.8,"min_p":0.01,"seed":3,"repetition_penalty":1.3,"presence_penalty":0.2,"repeat_last_n":16,"logprobs":0}
{"id":"stops","prompt":"A B C D E F","max_tokens":24,"stop":["K L"],"min_tokens":2,"logprobs":0}
{"id":"masks","prompt":"Once upon a time there was a small village near the sea, where the fishermen went out every morning before dawn. One day","prefix_token_ids":[198],"max_tokens":24,"temperature":0.8,"seed":5,"allowed_token_ids":[28,30,260,284,253,418,480,905,355,281],"bad_words":["the","a"],"prompt_logprobs":3,"logprobs":1,"skip_special_tokens":false}
J
}
