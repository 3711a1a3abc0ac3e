"""Stages of a benchmark, each measured once by the worker `systems`, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from parts.measuring import in_worker
from rich.console import Console

from paradigms.io.checks import json_or_empty, read_json
from paradigms.io.command_line import folder_name
from paradigms.io.files import contents, remove_folder, write_json

ANY = contents("*", "*/")
NOTHING = {"failed": "not measured"}


@dataclass(frozen=True)
class Stages:
    """Answers of the worker, saved in the output folder, so that an interrupted benchmark resumes.

    vectors: folder that `parts.vectors` wrote. pythons: interpreters of peers. limit: maximum seconds of a
    stage. seconds: file of each stage → its CPU seconds.
    """

    settings: Any  # of the benchmark, with a seed and the number of threads
    vectors: Path
    console: Console
    pythons: Mapping[str, str]
    k: int
    limit: int | None = None
    report: bool = False
    seconds: dict[Path, float] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.vectors.parent

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What `parts.vectors` wrote about the documents."""
        return read_json(self.vectors / "vectors.json")

    def measure(self, name: str, job: dict[str, Any], number: str = "") -> dict[str, Any]:
        """Return the answer to a job, read from its file or measured now; it has "failed" if there is none.

        A job's folder is relative to the output folder. number: distinguishes repetitions.
        """
        words = folder_name(name), str(job["documents"]), job["stage"], number
        file = self.folder / "stages" / f"{'-'.join(filter(None, words))}.json"
        request = job | {"vectors": self.facts}
        saved = json_or_empty(file)
        if saved.get("job") == request:
            self.seconds[file] = saved["CPU s"]
            return saved["answer"]
        if self.report:
            return NOTHING
        self.console.print(f"{name}, {job['documents']:,} documents: {job['stage']} …")
        place = self.folder / job.get("folder", "")
        if job["stage"] == "build":
            for old in (place, place.with_name(f".{place.name}.building")):
                remove_folder(old, ANY)
        threads = self.settings.threads
        arguments = {"k": self.k, "real": None} | job | {"seed": self.settings.seed, "threads": threads}
        arguments |= {"vectors": str(self.vectors), "folder": str(place)}
        python = self.pythons.get(job["system"], sys.executable)
        before = sum(os.times()[2:4])
        try:
            answer = in_worker("systems", arguments, threads, python, self.limit)
        except subprocess.TimeoutExpired:
            answer = {"failed": f"not ended after {self.limit} s"}
        except subprocess.CalledProcessError as error:  # the next run tries this stage again
            self.console.print(error.stderr[-2000:])
            return {"failed": error.stderr[-2000:]}
        self.seconds[file] = sum(os.times()[2:4]) - before
        write_json(file, {"job": request, "answer": answer, "CPU s": self.seconds[file]})
        return answer
