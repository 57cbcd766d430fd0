"""A small transformer with LoRA learns how Shakespeare's roles speak: AdamW at the clients, adapters alone travel.

``pip install -e '.[text]'``, then ``python examples/lora_text.py``: two minutes on one core. ``--model llama`` makes
another kind of model from its config; a folder or a name is loaded with its weights and its tokenizer: docs/text.md.
"""

import argparse
import resource
from pathlib import Path

import torch
from fl_lightning import FederatedLoop, System, algorithm
from fl_lightning.callbacks import ComputationTime, Group, HeterogeneitySchedule
from fl_lightning.data import Shakespeare, TensorFederation
from fl_lightning.data.shakespeare import CHARACTERS, decode
from fl_lightning.solvers import TorchOptimizer
from lightning.pytorch import LightningModule

IGNORED = -100  # targets that count nowhere: padding
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
SLOW_AND_FAST = [Group(0.5, (4, 8), (0.4, 0.5)), Group(0.5, (20, 30), (0.0, 0.1))]


def hugging_face():
    """Return transformers and peft, or say how to get them."""
    try:
        import peft
        import transformers
    except ImportError:
        raise SystemExit("this example needs transformers and peft: pip install -e '.[text]'") from None
    transformers.utils.logging.set_verbosity_error()
    return transformers, peft


class Language(LightningModule):
    """A causal model of transformers: next character, or next token."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def loss(self, batch):
        codes, targets = batch
        logits = self.model(input_ids=codes, use_cache=False).logits.transpose(1, 2)
        known = targets != IGNORED
        accuracy = (logits.argmax(1) == targets)[known].float().mean()
        return torch.nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED), accuracy

    def training_step(self, batch, batch_idx):
        return self.loss(batch)[0]

    def test_step(self, batch, batch_idx):
        loss, accuracy = self.loss(batch)
        self.log_dict({"test_loss": loss, "test_accuracy": accuracy}, batch_size=len(batch[0]))


def from_config(kind, transformers, seed=0):
    """Return a model of a kind (gpt2, llama, ...) with random weights: nothing is downloaded."""
    torch.manual_seed(seed)
    tokens = {"vocab_size": len(CHARACTERS), "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    sizes = SMALL | {"num_key_value_heads": 4, "max_position_embeddings": 128}
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **sizes, **tokens))
    for each in model.modules():
        if isinstance(each, torch.nn.Dropout):
            each.p = 0.0  # short training overfits nothing
    return model


def tokenized(federation, tokenizer, length):
    """Return the same roles with the windows cut into tokens of a model."""
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

    def codes(batches):
        texts = [decode(row) for codes, _ in batches for row in codes]
        made = tokenizer(texts, max_length=length + 1, padding="max_length", truncation=True, return_tensors="pt")
        targets = torch.where(made["attention_mask"].bool(), made["input_ids"], IGNORED)
        return made["input_ids"][:, :-1], targets[:, 1:]

    rows, ends = [torch.arange(int(size)).numpy() for size in federation.sizes], federation.sizes.cumsum()
    own = codes(federation.batch(client, row) for client, row in enumerate(rows))
    members = [row + end - size for row, end, size in zip(rows, ends, federation.sizes, strict=True)]
    return TensorFederation(own, codes(federation.test_batches(64)), members)


def pretrain(model, windows, steps, lr=0.01, warm_up=50):
    """Train all weights on text of nobody who will be a client: adapters of a random model have nothing to adapt."""
    module, optimizer = Language(model).train(), torch.optim.AdamW(model.parameters(), lr=lr)
    rising = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warm_up))
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(windows[0]), (32,), generator=generator)
        optimizer.zero_grad()
        module.training_step([part[rows] for part in windows], 0).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rising.step()


def windows_of(federation, most=10**9):
    """Return all windows of the roles that have fewer than so many."""
    few = [client for client, size in enumerate(federation.sizes) if size < most]
    parts = [federation.batch(client, torch.arange(int(federation.sizes[client])).numpy()) for client in few]
    return [torch.cat(columns) for columns in zip(*parts, strict=True)]


@torch.no_grad()
def tested(module, federation):
    """Return loss and accuracy on the windows that were held out, and the share of the commonest target."""
    batches = list(federation.test_batches(64))
    found = torch.tensor([[len(batch[0]), *module.eval().loss(batch)] for batch in batches])
    targets = torch.cat([targets[targets != IGNORED] for _, targets in batches])
    loss, accuracy = (found[:, :1] * found[:, 1:]).sum(0) / found[:, 0].sum()
    return float(loss), float(accuracy), float(targets.bincount().max() / len(targets))


def adapted(model, peft, rank=16):
    """Return the model with everything frozen but low-rank adapters beside its linear layers."""
    settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return Language(peft.get_peft_model(model, settings))


def prepared(model, clients, pretraining, folder):
    """Return the module with its adapters, and the clients' text as the model reads it."""
    transformers, peft = hugging_face()
    federation = (clients or Shakespeare(min_characters=8000)).load(0)
    if model in transformers.CONFIG_MAPPING:
        base = from_config(model, transformers)
        others = federation if clients else Shakespeare(min_characters=1000).load(0)
        pretrain(base, windows_of(others, 10**9 if clients else min(federation.sizes)), pretraining)
        base.save_pretrained(folder / "base")
    else:
        base = transformers.AutoModelForCausalLM.from_pretrained(model)
        federation = tokenized(federation, transformers.AutoTokenizer.from_pretrained(model), length=32)
    return adapted(base, peft), federation


def main(
    model="gpt2", name="fedacs", rounds=30, lr=0.005, pretraining=300, clients=None, folder=Path("runs/lora_text")
):
    """Train, and return the result and the module."""
    module, federation = prepared(model, clients, pretraining, folder)
    whole, sent = (sum(each.numel() for each in chosen) for chosen in (module.parameters(), _trained(module)))
    print(f"{len(federation.sizes)} roles; {whole:,} weights, {sent:,} of them adapters ({100 * sent / whole:.1f} %)")
    loop = FederatedLoop(
        # Adam has votes in place of A: docs/votes.md
        algorithm(name, clients_per_round=6, solver=TorchOptimizer(torch.optim.AdamW, votes=True)),
        System(schedule=HeterogeneitySchedule(groups=SLOW_AND_FAST)),
        rounds=rounds,
        lr=lr,
        batch_size=16,
        evaluate_every=max(1, rounds // 4),
        callbacks=[costs := ComputationTime()],
    )
    loss, accuracy, commonest = tested(module, federation)
    print(
        f"accuracy {commonest:.3f} with the commonest target alone, {accuracy:.3f} (loss {loss:.3f}) before adaptation"
    )
    result = loop.run(module, federation)
    loss, accuracy, _ = tested(module, federation)
    print(f"accuracy {accuracy:.3f} (loss {loss:.3f}) with the adapters after {rounds} rounds")
    up = costs.spent.uplink_bytes
    print(f"uploaded: {up / 1e6:.2f} MB of adapters; all weights would be {up * whole / sent / 1e6:.2f} MB")
    print(
        f"beside the frozen {4 * whole / 1e6:.2f} MB a client needs {3 * 4 * sent / 1e6:.2f} MB for gradients and AdamW"
    )
    print(f"peak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")
    print(result.summary)
    module.model.save_pretrained(folder / "adapter")  # as peft keeps it: the adapters alone
    return result, module


def _trained(module):
    return (each for each in module.parameters() if each.requires_grad)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gpt2", help="a kind of causal model, or a folder or name to load")
    parser.add_argument("--algorithm", default="fedacs", dest="name")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.005)
    main(**vars(parser.parse_args()))
