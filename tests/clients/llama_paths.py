"""A plugin of pytest for llama.cpp's server tests: their paths get the /v1 that this server wants."""


def pytest_sessionstart(session):
    import utils  # theirs

    plain = utils.ServerProcess.make_url

    def make_url(self, path, host=None):
        if path.startswith(("/chat/", "/completions", "/models", "/responses")):
            path = "/v1" + path
        return plain(self, path, host)
    utils.ServerProcess.make_url = make_url
