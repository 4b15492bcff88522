"""The messages that tests of programs with worker processes pass over, and no others."""

from tests.worker_messages import without_harmless

FOLDER = """Traceback (most recent call last):
  File "/root/.pyenv/versions/3.11.7/lib/python3.11/multiprocessing/util.py", line 300, in _run_finalizers
    finalizer()
  File "/root/.pyenv/versions/3.11.7/lib/python3.11/multiprocessing/util.py", line 133, in _remove_temp_dir
    rmtree(tempdir)
  File "/root/.pyenv/versions/3.11.7/lib/python3.11/shutil.py", line 736, in rmtree
    os.rmdir(path, dir_fd=dir_fd)
OSError: [Errno 39] Directory not empty: '/tmp/pymp-ygcvnq40'
"""
SHARER = """Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/resource_sharer.py", line 138, in _serve
    with self._listener.accept() as conn:
ConnectionResetError: [Errno 104] Connection reset by peer
"""
OURS = """Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
    os.rmdir("data")
OSError: [Errno 39] Directory not empty: 'data'
"""


def test_only_what_cpython_prints_at_the_end_of_a_worker_is_passed_over():
    assert (
        without_harmless(f"before\n{FOLDER}between\n{OURS}{SHARER}{FOLDER}after\n") == f"before\nbetween\n{OURS}after\n"
    )
