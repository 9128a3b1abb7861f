#!/usr/bin/env bats
# scripts/get-model with a local server that has the paths of a model hub.

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    export XDG_CACHE_HOME=$PWD/cache PATH=$PHASEPIPE_TOP/scripts:$PATH
    { printf 'GGUF'; head -c 3000000 /dev/urandom; } > model.gguf
    sha=$(sha256sum < model.gguf | cut -d' ' -f1)
    cat > server.py <<'P'
import http.server, os, sys
DATA = open("model.gguf", "rb").read()
MODE = sys.argv[1] if len(sys.argv) > 1 else ""
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a):
        with open("log", "a") as f:
            print(self.command, self.path, self.headers.get("Range", "-"), file=f)
    def answer(self, body):
        if self.path != "/me/tiny/resolve/main/model.gguf":
            self.send_response(404); self.send_header("Content-Length", "0"); self.end_headers(); return
        start, rng = 0, self.headers.get("Range")
        if rng and MODE != "norange":
            start = int(rng.split("=")[1].split("-")[0])
            if start >= len(DATA):
                self.send_response(416); self.send_header("Content-Length", "0"); self.end_headers(); return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(DATA)-1}/{len(DATA)}")
        else:
            self.send_response(200)
        if MODE != "nodigest":
            self.send_header("X-Linked-ETag", '"%s"' % open("digest").read().strip())
        self.send_header("Content-Length", str(len(DATA) - start)); self.end_headers()
        if body:
            if MODE == "cut" and not os.path.exists("was-cut"):
                open("was-cut", "w").close()
                self.wfile.write(DATA[start:1000000]); self.wfile.flush()
                self.connection.close(); self.close_connection = True
                return
            self.wfile.write(DATA[start:])
    def do_GET(self): self.answer(True)
    def do_HEAD(self): self.answer(False)
s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), H)
open("port.new", "w").write(str(s.server_port)); os.rename("port.new", "port")
s.serve_forever()
P
    echo "$sha" > digest
}

teardown() {
    [ -z "${server-}" ] || kill "$server" 2> /dev/null || true
}

serve() {
    python3 server.py "$@" > /dev/null 2>&1 3>&- &
    server=$!
    for _ in $(seq 100); do [ -s port ] && break; sleep 0.05; done
    PHASEPIPE_HF_BASE=http://127.0.0.1:$(cat port)
    export PHASEPIPE_HF_BASE
}

@test "a path is checked and printed" {
    [ "$(get-model "$PWD/model.gguf")" = "$PWD/model.gguf" ]
    [ "$(get-model model.gguf --sha256 "${sha^^}")" = model.gguf ]
    run get-model model.gguf --sha256 "${sha//[0-9]/0}"
    [ "$status" -eq 1 ]
    echo no > other
    run get-model other
    [ "$status" -eq 1 ]
    run get-model nowhere
    [ "$status" -eq 1 ]
}

@test "misuse is 100" {
    for args in "a b c" "--no-such" "a --sha256" "a --sha256 xyz" "--sha256 $sha" "../a b"; do
        rc=0
        # shellcheck disable=SC2086
        get-model $args > out 2> err || rc=$?
        [ "$rc" -eq 100 ] || { echo "$args: $rc"; false; }
        [ ! -s out ]
    done
}

@test "the path of the default model is printed, and a damaged file is refused" {
    mkdir -p cache/phasepipe
    [ "$(sha256sum < "$PHASEPIPE_TEST_MODEL" | cut -d' ' -f1)" = b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 ] ||
        skip "the tests run on another model"
    ln -s "$PHASEPIPE_TEST_MODEL" cache/phasepipe/SmolLM2-135M-Instruct.Q4_1.gguf
    [ "$(get-model)" = "$PWD/cache/phasepipe/SmolLM2-135M-Instruct.Q4_1.gguf" ]
    # Without an index to fetch it from, a damaged file is an error and its path is not printed.
    rm cache/phasepipe/*.gguf
    head -c 1000 model.gguf > cache/phasepipe/SmolLM2-135M-Instruct.Q4_1.gguf
    run env PIP_INDEX_URL=http://127.0.0.1:9/ PIP_RETRIES=0 PIP_NO_INDEX=1 get-model
    [ "$status" -eq 1 ]
    [[ $output == *damaged* ]]
    [ -z "$(ls -d cache/phasepipe/.get-model.* 2> /dev/null)" ]
}

@test "the cache directory is the one that the programs use" {
    mkdir -p home/.cache/phasepipe
    ln -s "$PHASEPIPE_TEST_MODEL" home/.cache/phasepipe/SmolLM2-135M-Instruct.Q4_1.gguf
    [ "$(sha256sum < "$PHASEPIPE_TEST_MODEL" | cut -d' ' -f1)" = b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 ] ||
        skip "the tests run on another model"
    [ "$(HOME=$PWD/home XDG_CACHE_HOME=not/absolute get-model)" = "$PWD/home/.cache/phasepipe/SmolLM2-135M-Instruct.Q4_1.gguf" ]
    [ "$(HOME=$PWD/home XDG_CACHE_HOME='' get-model)" = "$PWD/home/.cache/phasepipe/SmolLM2-135M-Instruct.Q4_1.gguf" ]
    for args in "" "me/tiny model.gguf"; do
        # shellcheck disable=SC2086
        run env -u HOME -u XDG_CACHE_HOME "$PHASEPIPE_TOP/scripts/get-model" $args
        [ "$status" -eq 111 ]
        [ "${#lines[@]}" -eq 1 ]
    done
}

@test "a file that the hub does not have is reported with the server's error" {
    serve
    run get-model me/tiny nowhere.gguf
    [ "$status" -eq 1 ]
    [[ $output == *404*"curl failed"* ]]
    PHASEPIPE_HF_BASE=http://127.0.0.1:9 run get-model me/tiny model.gguf
    [ "$status" -eq 1 ]
    [[ $output == *"curl failed with 7"* ]]
}

@test "a file of a hub is fetched once, by the digest that the server reports" {
    serve
    to=$(get-model me/tiny model.gguf)
    cmp model.gguf "$to"
    [[ $to == "$XDG_CACHE_HOME"/phasepipe/* ]]
    [ "$(get-model me/tiny model.gguf)" = "$to" ]
    [ "$(grep -c '^GET' log)" = 1 ]
    run get-model me/tiny other.gguf --sha256 "$sha"
    [ "$status" -eq 1 ]
    # Several at once fetch it once.
    rm -r "$XDG_CACHE_HOME"
    for i in 1 2 3 4; do get-model me/tiny model.gguf --sha256 "$sha" > "at-once.$i" 3>&- & pids[i]=$!; done
    for i in 1 2 3 4; do wait "${pids[i]}"; done
    [ "$(sort -u at-once.*)" = "$to" ]
    [ "$(grep -c '^GET.*model' log)" = 2 ]
}

@test "an interrupted download resumes" {
    serve cut
    get-model me/tiny model.gguf --sha256 "$sha" > out 2> err || get-model me/tiny model.gguf --sha256 "$sha" > out 2> err
    cmp model.gguf "$(cat out)"
    grep -q '^GET .* bytes=1000000-' log
}

@test "from a server without range requests the whole file is fetched again" {
    serve norange
    dir=$XDG_CACHE_HOME/phasepipe/hub/me--tiny
    mkdir -p "$dir"
    head -c 1000 model.gguf > "$dir/model.gguf.part"
    cmp model.gguf "$(get-model me/tiny model.gguf)"
}

@test "a partial file that is too long or wrong is discarded" {
    serve
    dir=$XDG_CACHE_HOME/phasepipe/hub/me--tiny
    mkdir -p "$dir"
    head -c 4000000 /dev/zero > "$dir/model.gguf.part"
    cmp model.gguf "$(get-model me/tiny model.gguf)"
    rm "$dir/model.gguf"
    head -c 1000 /dev/zero > "$dir/model.gguf.part"
    cmp model.gguf "$(get-model me/tiny model.gguf)"
}

@test "without any digest nothing is fetched; a wrong one is refused" {
    serve nodigest
    run get-model me/tiny model.gguf
    [ "$status" -eq 1 ]
    [[ $output == *--sha256* ]]
    ! grep -q '^GET' log
    run get-model me/tiny model.gguf --sha256 "${sha//[0-9]/0}"
    [ "$status" -eq 1 ]
    [ -z "$(find cache -name '*.gguf')" ]
}
