import torch


async def fetch():
    return 1


def breaks(x):
    y = x + 1
    coroutine = fetch()
    coroutine.close()
    return y * 2


def fixed(x):
    y = x + 1
    return y * 2  # the caller, an `async def` that is compiled itself, makes the coroutine and awaits it


calls = [(torch.ones(3, 3),)]
