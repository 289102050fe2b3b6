import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)
import tempfile
from pathlib import Path

path = Path(tempfile.mkdtemp()) / "tuned.jsonl"
path.write_text('{"kernel_dsl tuning": 1}\n{"gpu": 5}\n')
kd.tuning.load(path)
