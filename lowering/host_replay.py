"""Host code that replays a graph: a function of CPython's C interface that asks for the stream and launches.

A binding of the driver in Python takes longer for one launch: it makes objects of Python of each argument and result.
"""

from __future__ import annotations

from collections.abc import Mapping

REPLAY = "kd_replay"
FUNCTIONS = (  # of C that it calls: CPython's, and the driver's
    "PyBool_FromLong",
    "PyByteArray_AsString",
    "PyEval_RestoreThread",
    "PyEval_SaveThread",
    "PyLong_AsUnsignedLongLongMask",
    "PyObject_CallOneArg",
    "Py_DecRef",
    "cuCtxGetCurrent",
    "cuGraphLaunch",
    "cuStreamIsCapturing",
)


def replay_text(addresses: Mapping[str, int]) -> str:
    """The module of `PyObject *REPLAY(PyObject *self, PyObject *)`. `addresses`: those of `FUNCTIONS`.

    `self` is a bytearray that holds a `ReplayState` of `runtime/graph/fast.py`. The result is True after a launch in the current
    stream, and False where the slow path has to launch.

    `current` may run Python, so another thread may change the state until it returns. From there to `PyEval_SaveThread` no
    other thread runs, so testing and setting `busy` are one step.
    """
    at = {name: f"inttoptr (i64 {address} to ptr)" for name, address in addresses.items()}
    return f"""
%State = type {{ i8, i8, ptr, ptr, ptr, ptr, i64, [0 x i64] }}
define ptr @{REPLAY}(ptr %self, ptr %none) nounwind {{
entry:
  %answer = alloca i64, align 8
  store i64 0, ptr %answer
  %open = call ptr {at["PyByteArray_AsString"]}(ptr %self)
  %busy = getelementptr %State, ptr %open, i64 0, i32 1
  %executable.at = getelementptr %State, ptr %open, i64 0, i32 2
  %context.at = getelementptr %State, ptr %open, i64 0, i32 3
  %current.at = getelementptr %State, ptr %open, i64 0, i32 4
  %index.at = getelementptr %State, ptr %open, i64 0, i32 5
  %count.at = getelementptr %State, ptr %open, i64 0, i32 6
  %current = load ptr, ptr %current.at
  %index = load ptr, ptr %index.at
  %number = call ptr {at["PyObject_CallOneArg"]}(ptr %current, ptr %index)
  %raised = icmp eq ptr %number, null
  br i1 %raised, label %raise, label %asked
asked:
  %stream = call i64 {at["PyLong_AsUnsignedLongLongMask"]}(ptr %number)
  call void {at["Py_DecRef"]}(ptr %number)
  %count = load i64, ptr %count.at
  br label %look
look:
  %i = phi i64 [ 0, %asked ], [ %next, %other ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %compare, label %end
compare:
  %known.at = getelementptr %State, ptr %open, i64 0, i32 7, i64 %i
  %known = load i64, ptr %known.at
  %next = add i64 %i, 1
  %same = icmp eq i64 %known, %stream
  br i1 %same, label %found, label %other
other:
  br label %look
found:
  %handle = inttoptr i64 %stream to ptr
  %context = load ptr, ptr %context.at
  %default = icmp eq i64 %stream, 0
  br i1 %default, label %several, label %captured
captured:                                         ; the default stream can't be captured
  %code.captured = call i32 {at["cuStreamIsCapturing"]}(ptr %handle, ptr %answer)
  %status = load i64, ptr %answer
  %unknown = sext i32 %code.captured to i64
  %doubt = or i64 %status, %unknown
  %free = icmp eq i64 %doubt, 0
  br i1 %free, label %turn, label %end
several:                                          ; the default stream belongs to the current context
  %one = icmp eq ptr %context, null
  br i1 %one, label %turn, label %contexts
contexts:
  %code.context = call i32 {at["cuCtxGetCurrent"]}(ptr %answer)
  %now = load ptr, ptr %answer
  %here = icmp eq ptr %now, %context
  br i1 %here, label %turn, label %end
turn:
  %is.open = load i8, ptr %open
  %is.busy = load i8, ptr %busy
  %is.free = icmp ult i8 %is.busy, %is.open
  br i1 %is.free, label %launch, label %end
launch:
  %executable = load ptr, ptr %executable.at
  store i8 1, ptr %busy
  %thread = call ptr {at["PyEval_SaveThread"]}()
  %code = call i32 {at["cuGraphLaunch"]}(ptr %executable, ptr %handle)
  call void {at["PyEval_RestoreThread"]}(ptr %thread)
  store i8 0, ptr %busy
  %done = icmp eq i32 %code, 0
  br label %end
end:
  %launched = phi i1 [ false, %look ], [ false, %captured ], [ false, %contexts ], [ false, %turn ], [ %done, %launch ]
  %long = zext i1 %launched to i64
  %result = call ptr {at["PyBool_FromLong"]}(i64 %long)
  ret ptr %result
raise:
  ret ptr null
}}
"""
