/* Chat templates that are known: two of tests/golden/chat.jsonl. */
#ifndef TESTS_TEXT_TEMPLATES_H
#define TESTS_TEXT_TEMPLATES_H

#define TEMPLATE_CHATML                                                                                                \
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% "              \
    "endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

#define TEMPLATE_LLAMA3                                                                                                \
    "{% for m in messages %}{% set c = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' "                 \
    "+ m['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set c = bos_token + c %}{% endif "             \
    "%}{{ c }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' "     \
    "}}{% endif %}"

#endif
