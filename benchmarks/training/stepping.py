"""A process with so many threads of torch that takes training steps: reads numbers of steps, writes seconds."""

import sys
import time


def main() -> None:
    """Serve requests on standard input until it ends."""
    import torch
    from torch.nn import functional

    from smalti.torch.train.config import TrainConfig
    from smalti.torch.train.trainer.models import build_model, logits_of

    torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(0)
    config = TrainConfig(data="none", run_dir="none", num_classes=5)
    model = build_model(config).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    pixels = torch.randn(config.batch_size, 3, 96, 96).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 5, (config.batch_size,))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(logits_of(model(pixels)), labels).backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()

    step()
    print("ready", flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    main()
