"""Models as ONNX files, which ONNX Runtime computes without torch and without this package.

Needs the extra `onnx`: onnx and onnxscript to write them, onnxruntime to run them.
"""

from bert_core.onnx.running import OnnxModel
from bert_core.onnx.writing import export_onnx
