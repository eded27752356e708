"""Store: what many tests share, made once a session. It knows how to make, keep and close, not what is compared."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from forebay import PoolingModel
from tests.support import pipelines, tiny


class Store:
    """Backbones, pipeline folders, reference models and engines, each made at its first use."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folders: dict[str, Path] = {}
        self._references: dict[Path, pipelines.Reference] = {}
        self._engines: dict[tuple[Path, str], PoolingModel] = {}

    def folder(self, name: str, make: Callable[[Path], Path]) -> Path:
        """The folder that ``make`` fills, under a name that stands for exactly this content."""
        if name not in self._folders:
            self._folders[name] = make(self.root / name)
        return self._folders[name]

    def backbone(self, name: str, **changes: Any) -> Path:
        """A plain transformers checkpoint of this family, with ``changes`` to its config."""
        key = "-".join(["backbone", name, *(f"{option}={value}" for option, value in sorted(changes.items()))])
        return self.folder(key, lambda place: tiny.TRANSFORMERS[name](place, **changes))

    def mean_pipeline(self, name: str, **changes: Any) -> Path:
        """The same with mean pooling and nothing else around it."""
        backbone = self.backbone(name, **changes)
        modules = [pipelines.transformer(backbone), pipelines.pooling("mean")]
        return self.folder(f"mean-{backbone.name}", lambda place: pipelines.save_pipeline(place, modules))

    def reference(self, folder: Path) -> pipelines.Reference:
        """sentence-transformers on this folder."""
        if folder not in self._references:
            self._references[folder] = pipelines.Reference(folder)
        return self._references[folder]

    def engine(self, folder: Path, **options: Any) -> PoolingModel:
        """Forebay on this folder."""
        key = (folder, repr(sorted(options.items())))
        if key not in self._engines:
            self._engines[key] = PoolingModel(str(folder), **options)
        return self._engines[key]

    def close(self) -> None:
        """Stop every engine."""
        for engine in self._engines.values():
            engine.close()
