def BPE():
    return None
