from tokenizers import SPELLED


class ByteLevel:
    def __init__(self, add_prefix_space):
        assert not add_prefix_space

    @staticmethod
    def alphabet():
        return list(SPELLED.values())
