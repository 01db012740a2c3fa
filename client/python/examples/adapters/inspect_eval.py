"""An evaluation of Inspect whose samples run in workspaces of jig. A script replaces the model.

Usage: JIG_ADDRESS=127.0.0.1:50051 inspect_eval.py
"""

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash

# `pip install 'jig-client[inspect]'` also registers the sandbox for `--sandbox jig`.
import jig.adapters.inspect  # noqa: F401  # pyright: ignore[reportUnusedImport]

SAMPLES = 3

task = Task(
    dataset=[
        Sample("What is in secret.txt?", target=f"word {number}", files={"secret.txt": f"{number}"})
        for number in range(SAMPLES)
    ],
    solver=[use_tools(bash(timeout=10)), generate()],
    scorer=includes(),
    sandbox="jig",
)


def script(sample: int) -> list[ModelOutput]:
    """The replies of the model for a sample: a command, then the answer."""
    command = {"command": f'[ "$(cat secret.txt)" = {sample} ] && echo "word $(cat secret.txt)"'}
    call = ModelOutput.for_tool_call("mockllm/model", "bash", command)
    answer = ModelOutput.from_content("mockllm/model", f"It says: word {sample}")
    for output in (call, answer):
        # Otherwise, Inspect downloads a tokenizer to count.
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return [call, answer]


outputs = [output for sample in range(SAMPLES) for output in script(sample)]
model = get_model("mockllm/model", custom_outputs=outputs)
log = eval(task, model=model, max_samples=1, display="none")[0]
assert log.samples is not None and log.results is not None, log.error
for sample in log.samples:
    print(sample.messages[-2].text.strip())
print(f"{log.status}, accuracy {log.results.scores[0].metrics['accuracy'].value}")
