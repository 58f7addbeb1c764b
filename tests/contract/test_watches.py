from holdfast.testing.watch_contract import WatchContract


class TestWatches(WatchContract):
    pass
