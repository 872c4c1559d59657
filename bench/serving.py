# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/serving.sh: vLLM with tensor parallelism over all ranks, a model of random weights.  Rank 0 prints a line
"RESULT what tokens/s" for prefill and decode with 1 and 8 prompts, and "TOKENS hash".

serving.py ROUNDS FOLDER PEER: the rank, with the model in FOLDER.  PEER: with what Hocket is compared, "gloo", or "memory" for vLLM's
own shared memory.  serving.py --save FOLDER: writes the model.  serving.py --summary PEER: reads lines "NETWORK what tokens/s" and
"TOKENS NETWORK hash", and prints medians and whether all tokens are equal."""
import collections
import hashlib
import os
import statistics
import sys
import time

MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
         "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 4096, "hidden_act": "silu",
         "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
         "tie_word_embeddings": False, "rope_theta": 10000.0}
PROMPT, DECODED = 128, 32


def seconds(llm, prompts, tokens):
    """How long this takes, and what is said."""
    from vllm import SamplingParams

    how = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    begin = time.perf_counter()
    said = llm.generate(prompts, how, use_tqdm=False)
    return time.perf_counter() - begin, [x.outputs[0].token_ids for x in said]


def summary(peer, lines):
    """The medians of the peer's and Hocket's figures."""
    figures, tokens = collections.defaultdict(list), set()
    for first, second, third in map(str.split, lines):
        if first == "TOKENS":
            tokens.add(third)
        else:
            figures[second, first].append(float(third))
    print(f"tokens/s    {peer:>6}  hocket   ratio")
    for what in sorted({what for what, _ in figures}):
        other, hocket = (statistics.median(figures[what, name]) for name in (peer, "hocket"))
        print(f"{what:10} {other:7.1f} {hocket:7.1f} {hocket / other:7.2f}")
    print("equal tokens" if len(tokens) == 1 else "OTHER TOKENS")


def main():
    if sys.argv[1] == "--summary":
        summary(sys.argv[2], sys.stdin)
        return
    if sys.argv[1] == "--save":
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "frameworks"))
        import vllm_serves
        vllm_serves.save(sys.argv[2], MODEL)
        return
    from vllm import LLM
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    # vLLM 0.32 takes ranks of several hosts for ranks of one, and fails to open their shared memory. Without it they use Gloo.
    if sys.argv[3] == "gloo":
        CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
    rounds, rank, ranks = int(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    llm = LLM(model=sys.argv[2], skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16", max_model_len=256, max_num_seqs=8,
              enable_prefix_caching=False, seed=1, tensor_parallel_size=ranks, distributed_executor_backend="external_launcher")
    for k in range(rounds + 1):  # the first one warms up
        for number in (1, 8):
            prompts = [{"prompt_token_ids": [3 + (17 * p + 5 * i) % 4000 for i in range(PROMPT)]} for p in range(number)]
            prefill, _ = seconds(llm, prompts, 1)
            both, said = seconds(llm, prompts, 1 + DECODED)
            if rank == 0 and k:
                print(f"RESULT prefill-{number} {number * PROMPT / prefill:.1f}\n"
                      f"RESULT decode-{number} {number * DECODED / (both - prefill):.1f}", flush=True)
    if rank == 0:
        print("TOKENS", hashlib.sha256(repr(said).encode()).hexdigest()[:16], flush=True)


if __name__ == "__main__":
    main()
