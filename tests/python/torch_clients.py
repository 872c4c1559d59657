# SPDX-License-Identifier: Apache-2.0
"""Training by libraries that know Gloo alone on CPUs. They are used as their manuals say, with no word about a backend.

torch_clients.py accelerate|trainer|lightning|deepspeed: each rank trains; rank 0 prints the group's type, the last loss
and the time of a step, median and least in milliseconds. torch_clients.py ray starts two ranks by itself.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
import torch
import torch.distributed as dist

STEPS, WIDTH, BATCH = 30, 256, 8


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1))


def data():
    torch.manual_seed(2)
    n = STEPS * BATCH * int(os.environ["WORLD_SIZE"])
    return torch.utils.data.TensorDataset(torch.randn(n, WIDTH), torch.randn(n, 1))


def by_accelerate():
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    net = model()
    net, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01),
                                                 torch.utils.data.DataLoader(data(), batch_size=BATCH))
    times = [time.perf_counter()]
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        accelerator.backward(loss)
        optimizer.step()
        times.append(time.perf_counter())
    return accelerator.gather(loss.detach()).mean().item(), times


def by_trainer():
    import transformers
    torch.manual_seed(1)
    net = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0))
    torch.manual_seed(2)
    tokens = torch.randint(256, (STEPS * BATCH * int(os.environ["WORLD_SIZE"]), 32))
    times, losses = [time.perf_counter()], []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_, **__):
            times.append(time.perf_counter())

        def on_log(self, arguments, state, control, logs=None, **_):
            if "loss" in logs:
                losses.append(float(logs["loss"]))

    with tempfile.TemporaryDirectory() as folder:
        transformers.Trainer(net, transformers.TrainingArguments(
            output_dir=folder, use_cpu=True, per_device_train_batch_size=BATCH, num_train_epochs=1, logging_steps=STEPS,
            save_strategy="no", report_to=[], disable_tqdm=True, lr_scheduler_type="constant"),
            train_dataset=[{"input_ids": t, "labels": t} for t in tokens], callbacks=[Clock()]).train()
    return losses[-1], times


def by_lightning():
    import pytorch_lightning as lightning
    times, losses = [time.perf_counter()], []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()

        def training_step(self, batch, _):
            losses.append(torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))
            return losses[-1]

        def on_train_batch_end(self, *_):
            times.append(time.perf_counter())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    with tempfile.TemporaryDirectory() as folder:
        ranks = int(os.environ["WORLD_SIZE"])
        trainer = lightning.Trainer(accelerator="cpu", devices=ranks, strategy="ddp", max_epochs=1, logger=False,
                                    enable_checkpointing=False, enable_progress_bar=False,
                                    enable_model_summary=False, default_root_dir=folder)
        trainer.fit(Module(), torch.utils.data.DataLoader(data(), batch_size=BATCH))
    loss = losses[-1].detach()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size(), times


def by_deepspeed():
    import deepspeed
    net = model()
    engine, _, loader, _ = deepspeed.initialize(
        model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.01), training_data=data(), config={
            "train_micro_batch_size_per_gpu": BATCH, "zero_optimization": {"stage": 2},
            "zero_allow_untested_optimizer": True, "steps_per_print": 10 * STEPS})
    times = [time.perf_counter()]
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        times.append(time.perf_counter())
    loss = loss.detach()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size(), times


def by_ray():
    import ray.train.torch

    def train():
        net = ray.train.torch.prepare_model(model())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        times = [time.perf_counter()]
        for x, y in ray.train.torch.prepare_data_loader(torch.utils.data.DataLoader(data(), batch_size=BATCH)):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            times.append(time.perf_counter())
        loss = loss.detach()
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            with open(os.path.join(folder, "said"), "w") as file:
                json.dump([loss.item() / dist.get_world_size(), times, dist.get_backend()], file)

    # Ray gives its agent 15 s to start (ray-project/ray#65983), and reading it from a disk can take longer.
    subprocess.run([sys.executable, "-c", "import ray.dashboard.agent"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            ray.init(num_cpus=2, include_dashboard=False, object_store_memory=2**27, _temp_dir=folder)
        except Exception as error:
            slow = "timed out during startup" in str(error)
            sys.exit(f"SKIP: Ray does not start on this machine: {error}" if slow else error)
        ray.train.torch.TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=2),
                                     run_config=ray.train.RunConfig(storage_path=folder)).fit()
        with open(os.path.join(folder, "said")) as file:
            said = json.load(file)
        ray.shutdown()
    return said


loss, times, *group = globals()[f"by_{sys.argv[1]}"]()
if int(os.environ.get("RANK", "0")) == 0:
    steps = [1000 * (b - a) for a, b in zip(times[2:], times[3:])]
    name = group[0] if group else dist.get_backend()
    print(f"{name} {loss:.6f} {statistics.median(steps):.2f} {min(steps):.2f}\n", end="")
if dist.is_initialized():
    dist.destroy_process_group()
