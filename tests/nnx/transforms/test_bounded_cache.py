from sonde.nnx.transforms.bounded_cache import Recent


def test_what_was_not_used_for_longest_goes_first():
    cache, made = Recent(2), []

    def get(key):
        return cache.get(key, lambda: (made.append(key), key)[1])

    for key in "abacab":
        assert get(key) == key
    assert made == ["a", "b", "c", "b"]
