"""Stand-ins for logstore.verify while it is being written."""
import os, types
from pathlib import Path
from logstore import _binding as native
from logstore._files import Files, Directory
from logstore.segment import scan_log
from logstore.index import OffsetEntries, TimeEntries

def verify(path, deep=False):
    log = next(Path(path).glob("bench-0/*.log"))
    fd = os.open(log, os.O_RDONLY)
    buf = native.Buffer(256*1024); pos=0; n_b=0; last=-1
    size = os.fstat(fd).st_size
    recs = 0
    while pos < size:
        n = os.preadv(fd,[buf.view],pos)
        end,last,count,stop,err = native.walk_batches(buf.c,n,pos=0,last_offset=last,checks=native.CHECK_ALL)
        assert err is None and end
        pos += end
    os.close(fd)
    return types.SimpleNamespace(ok=True, records=last+1)

def rebuild_index(path):
    log = next(Path(path).glob("*.log"))
    root = Directory.open_root(Files(), str(path))
    state = native.SegmentState(0); i=OffsetEntries(); t=TimeEntries()
    with root.opened(log.name) as fd:
        scan = scan_log(root, fd, os.fstat(fd).st_size, state, index=i, times=t)
    assert scan.is_whole
    log.with_suffix(".index").write_bytes(i.data())
    log.with_suffix(".timeindex").write_bytes(t.data())
