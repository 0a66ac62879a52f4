"""Breaks out of everything at the n-th global read: no handler, no finally, no __exit__ of any frame may run."""
import gc
import sys
import weakref

log = []


class Guarded:
    def __enter__(self):
        return self

    def __exit__(self, *a):
        log.append("exit")
        return True

    def __len__(self):
        return SIZE


SIZE = 3


def generate(t):
    try:
        yield len(t)
        yield SIZE
    except BaseException:
        log.append("except in generator")
    finally:
        log.append("finally in generator")


def consume(t):
    try:
        return [x + SIZE for x in generate(t)]
    except BaseException:
        log.append("except")


def hold(t):
    with t:
        try:
            return consume(t)
        finally:
            log.append("finally")


def outer(t):
    try:
        return hold(t)
    except BaseException:
        log.append("outer except")
    finally:
        log.append("outer finally")


def check(fj):
    """Whether some abandonment happened inside each of the frames; raises AssertionError on a handler that ran."""
    outer(Guarded())
    normal, broken = list(log), 0
    for n in range(100):
        log.clear()
        t = Guarded()
        watch = weakref.ref(t)
        before = sys.exc_info()
        fj.frame_sweep(None, n, "abandon")
        try:
            outer(t)
            message = ""
        except BaseException as e:
            message = str(e)
        finally:
            stats = fj.frame_sweep_off()
        if not message:
            assert log == normal, (n, log)
            return broken
        seen = list(log)
        assert message == "abandoned", message
        assert seen == normal[:len(seen)], (n, seen)  # ran before the break; handlers would add "except"
        assert sys.exc_info() == before
        assert sys._getframe().f_code.co_name == "check"  # the frames are gone
        assert stats["raised"] > 0
        del t
        gc.collect()
        assert watch() is None, n
        broken += 1
    raise AssertionError("never ran to the end")
