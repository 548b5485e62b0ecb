"""Values that are set for good, or for a block or a function in one thread."""

import threading

from sonde.nnx.settings import Setting, SettingChange


def test_a_change_is_for_good_unless_it_is_entered_or_decorates():
    setting = Setting(lambda: 1)
    SettingChange(setting, 2)
    assert (setting.current, setting.everywhere) == (2, 2)
    with SettingChange(setting, 3) as value:
        assert (value, setting.current, setting.everywhere) == (3, 3, 2)
        with SettingChange(setting, 4):
            assert setting.current == 4
        assert setting.current == 3
    assert setting.current == 2

    @SettingChange(setting, 5)
    def inside():
        return setting.current, setting.everywhere

    assert inside() == (5, 2) == inside() and setting.current == 2


def test_a_change_in_a_block_is_for_good_or_until_the_block_ends():
    setting = Setting(lambda: "a")
    with SettingChange(setting, "b"):
        SettingChange(setting, "c", in_block=True)
        assert (setting.current, setting.everywhere) == ("c", "a")
        with SettingChange(setting, "d", in_block=True):
            assert setting.current == "d"
        assert setting.current == "c"
        SettingChange(setting, "e")
        assert (setting.current, setting.everywhere) == ("c", "e")
    assert setting.current == "e"


def test_blocks_are_those_of_a_thread():
    setting, found = Setting(lambda: 1), []
    with SettingChange(setting, 2):
        thread = threading.Thread(target=lambda: found.append((setting.current, setting.blocks)))
        thread.start()
        thread.join()
        assert setting.blocks == (2,)
    assert found == [(1, ())]


def test_one_change_can_be_entered_again():
    setting = Setting(lambda: 1)
    change = SettingChange(setting, 2)
    for _ in range(2):
        with change:
            assert setting.current == 2
        assert setting.current == 1
