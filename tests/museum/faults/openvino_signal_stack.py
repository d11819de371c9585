"""OpenVINO's plugin for the CPU leaves a freed stack for signals: the next one ends the process.

software: OpenVINO
kind: crash
known: not searched for
"""

import subprocess
import sys

CODE = """
import gc, signal, threading, openvino
from openvino import opset13 as ops
parameter = ops.parameter([1])
engines = [openvino.Core().compile_model(openvino.Model([ops.relu(parameter)], [parameter]), "CPU")]
thread = threading.Thread(target=lambda: (engines.clear(), gc.collect()))
thread.start(), thread.join()
signal.signal(signal.SIGALRM, lambda *_: None)
signal.raise_signal(signal.SIGALRM)
"""
code = subprocess.run([sys.executable, "-c", CODE], check=False).returncode
assert code == 0, f"the process ended by signal {-code}"
