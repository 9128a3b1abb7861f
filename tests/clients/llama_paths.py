"""A pytest plugin for llama.cpp's server tests: adds to their paths the /v1 that this server requires."""


def pytest_sessionstart(session):
    import utils  # of llama.cpp's tests

    plain = utils.ServerProcess.make_url

    def make_url(self, path, host=None):
        if path.startswith(("/chat/", "/completions", "/models", "/responses")):
            path = "/v1" + path
        return plain(self, path, host)
    utils.ServerProcess.make_url = make_url
