"""The first import of `streaming` in a process that only inherited `sys.path`, such as a spawned one: an alias."""

if __name__ == "streaming":
    from smalti.compat.streaming.alias import install

    install()
