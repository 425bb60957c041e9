//! Tests the Python hook with a stand-in for PyTorch.

use serde_json::{Value, json};

use crate::{Bench, Ran};

/// Stand-in for PyTorch, with the functions that the hook calls. They return the peak that the
/// program sets.
const TORCH: &str = r#"
import sys, types
__version__ = "2.11.0+cu130"
class version: cuda = "13.0"
peak, observers, steps, opens = {0: 0}, [], [], []
def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    return made
def stats(device):
    of = {"all": {"peak": peak[device], "allocated": 5}}
    keys = "requested_bytes", "allocated_bytes", "reserved_bytes", "allocation"
    return dict.fromkeys(keys, of)
memory = module("torch.cuda.memory", _record_memory_history=lambda **_: None, _snapshot=lambda: {})
cuda = module("torch.cuda", memory=memory, is_initialized=lambda: True, device_count=lambda: 1,
    memory_stats_as_nested_dict=stats, _lazy_call=lambda function: (function(), opens.append(function)),
    memory_allocated=lambda _: 7, memory_reserved=lambda _: 8,
    get_allocator_backend=lambda: "native")
def reset(device): peak[device] = 0
_C = module("torch._C", _cuda_resetPeakMemoryStats=reset,
    _cuda_attach_out_of_memory_observer=observers.append)
optimizer = module("torch.optim.optimizer", register_optimizer_step_post_hook=steps.append)
class Adam: pass
class AdamW: pass
optim = module("torch.optim", optimizer=optimizer, Adam=Adam, AdamW=AdamW)
class BatchSampler: pass
class DataLoader:
    def __init__(self, dataset, batch_size=1, shuffle=None, sampler=None, batch_sampler=None):
        self.batch_size, self.batch_sampler = batch_size, batch_sampler
data = module("torch.utils.data", BatchSampler=BatchSampler, DataLoader=DataLoader)
before, after = [], []
parts = module("torch.nn.modules.module", register_module_forward_pre_hook=before.append,
    register_module_forward_hook=lambda hook, always_call: after.append(hook))
class ModuleList: pass
class Sequential: pass
rnn = types.SimpleNamespace(pack_padded_sequence=lambda padded, *others: print(*others))
nn = module("torch.nn", ModuleList=ModuleList, Sequential=Sequential,
    modules=types.SimpleNamespace(module=parts), utils=types.SimpleNamespace(rnn=rnn))
int64, full = "torch.int64", lambda sizes, value, dtype, device: [value] * sizes[0]
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(benchmark=False))
compiler = types.SimpleNamespace(is_compiling=lambda: False)
jit = types.SimpleNamespace(is_tracing=lambda: False)
is_grad_enabled, is_autocast_enabled, float32 = lambda: True, lambda: False, "float32"
bfloat16 = "torch.bfloat16"
cuda.get_device_capability = lambda: (9, 0)
class _TorchCompileInductorWrapper:
    def apply_options(self, options): print(options)
texts = []
_C._cuda_setMemoryMetadata = texts.append
class Tensor:
    """A tensor of CUDA at an address."""
    is_cuda, dtype, requires_grad, grad = True, "float32", True, None
    device = types.SimpleNamespace(type="cuda")
    def __init__(self, address): self.address = address
    def untyped_storage(self): return self
    def data_ptr(self): return self.address
    def numel(self): return 4
    def element_size(self): return 4
class Module:
    """A module that runs its parts, then a function."""
    def __init__(self, parameters=(), parts=None, run=lambda: None):
        self._parameters, self._buffers = dict(enumerate(parameters)), {}
        self.parts, self.run = parts or {}, run
    def named_modules(self, name=""):
        yield name, self
        for part, module in self.parts.items():
            yield from module.named_modules(f"{name}.{part}".strip("."))
    def modules(self): return (module for _, module in self.named_modules())
    def children(self): return self.parts.values()
    def parameters(self):
        return (tensor for module in self.modules() for tensor in module._parameters.values())
    def __call__(self):
        for hook in before: hook(self, ())
        try:
            for part in self.parts.values(): part()
            self.run()
        finally:
            for hook in after: hook(self, (), None)
def opened(): opens[0]()
def step(of="an optimizer"): steps[0](of, (), {})
"#;

/// Runs a program that imports the module.
fn ran(program: &str, options: &[&str]) -> (Ran, Value) {
    let bench = Bench::new();
    bench.file("torch.py", TORCH);
    let path = bench.file("program.py", &format!("import torch\n{program}"));
    bench.json(&[options, &["--", "python3", &path]].concat())
}

fn process(json: &Value) -> Value {
    json["cards"][0]["processes"][0].clone()
}

#[test]
fn compile_leaves_out_tuning_by_time() {
    let program = r#"
torch._TorchCompileInductorWrapper().apply_options({"max_autotune": True, "triton.cudagraphs": True})
"#;
    let (ran, _) = ran(program, &[]);
    assert_eq!(ran.stdout, "{'triton.cudagraphs': True}\n");
    assert!(ran.stderr.contains("choose kernels by their time"), "{}", ran.stderr);
}

#[test]
fn killed_process_leaves_its_report() {
    let program = r#"
import os
driver = '{"has_pytorch": true, "devices": [{"total": 99, "peak_in_use": 50}]}'
with open(f"{os.environ['GPUHEAP_EMULATED_REPORT']}/driver.{os.getpid()}.json", "w") as file:
    file.write(driver)
os.kill(os.getpid(), 9)
"#;
    let (ran, json) = ran(program, &[]);
    assert_eq!((ran.code, &process(&json)["torch"]), (3, &json!("2.11.0+cu130")));
    assert!(!ran.stderr.contains("without the dry run's hook"), "{}", ran.stderr);
}

#[test]
fn sigterm_reports_before_threads_end() {
    let program = "
import os, signal, threading, time
ended = threading.Event()
def kill():
    ended.wait()
    os.kill(os.getpid(), 9)
threading.Thread(target=kill).start()
torch.peak[0] = 10
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
finally:
    ended.set()
";
    let (_, json) = ran(program, &[]);
    assert_eq!(process(&json)["devices"][0]["allocated"], 10);
}

#[test]
fn peak_survives_reset_with_its_step() {
    let program = "
torch.peak[0] = 10
torch.step()
torch.peak[0] = 30
torch._C._cuda_resetPeakMemoryStats(0)
torch.peak[0] = 20
torch.step()
torch.step()
print('end')
";
    let (ran, json) = ran(program, &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "end\n"), "{}", ran.stderr);
    let process = process(&json);
    assert_eq!((&process["steps"], &process["torch"]), (&json!(3), &json!("2.11.0+cu130")));
    let device = &process["devices"][0];
    let figures =
        ["requested", "allocated", "reserved", "allocations", "step"].map(|key| &device[key]);
    assert_eq!(figures, [&json!(30), &json!(30), &json!(30), &json!(5), &json!(2)]);
}

#[test]
fn abrupt_end_keeps_peaks() {
    let program = "torch.opened()\ntorch.peak[0] = 30\nimport os; os._exit(4)";
    let (ran, json) = ran(program, &[]);
    assert_eq!((ran.code, &json["cards"][0]["ended"]), (3, &json!({"exit": 4})));
    assert_eq!(process(&json)["devices"][0]["allocated"], 30);
}

#[test]
fn program_ends_after_its_steps() {
    let program = "
import time
torch.peak[0] = 1
try:
    while True:
        torch.step('one'); torch.step('two'); print('stepped'); time.sleep(0.01)
finally:
    print('cleaned up')
";
    let (ran, json) = ran(program, &["--steps", "2"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "stepped\ncleaned up\n"), "{}", ran.stderr);
    assert_eq!(process(&json)["steps"], 2);
    let (ran, json) = self::ran(program, &["--time-limit", "4s"]);
    assert_eq!((ran.code, &json["cards"][0]["ended"]), (0, &json!("time_limit")));
    assert!(ran.stdout.ends_with("cleaned up\n"), "{}", ran.stderr);
}

#[test]
fn step_that_hangs_is_ended() {
    let program = "
torch.opened()
torch.peak[0] = 5
torch.step()
import time
time.sleep(600)
";
    let (ran, json) = ran(program, &["--time-limit", "5s"]);
    assert_eq!((ran.code, &json["cards"][0]["ended"]), (0, &json!("time_limit")), "{}", ran.stderr);
    assert!(ran.stderr.contains("It fits on H200 141GB so far."), "{}", ran.stderr);
    assert_eq!(process(&json)["devices"][0]["allocated"], 5);
}

#[test]
fn interrupted_program_has_its_figures() {
    let bench = Bench::new();
    bench.file("torch.py", TORCH);
    // The second signal arrives while the reports are written.
    let program = "import os, signal, time, torch
torch.opened()
torch.peak[0] = 5
torch.step()
torch.peak[0] = 7
parent = os.getppid()
def snapshot():
    os.kill(parent, signal.SIGTERM)
    time.sleep(0.3)
    return {}
torch.cuda.memory._snapshot = snapshot
os.kill(parent, signal.SIGTERM)
time.sleep(600)
";
    let path = bench.file("program.py", program);
    let (ran, json) = bench.json(&["--", "python3", &path]);
    let reason = &json["cards"][0]["reason"];
    assert_eq!((ran.code, reason), (3, &json!("interrupted")), "{}", ran.stderr);
    assert!(ran.stderr.contains("Figures are those so far"), "{}", ran.stderr);
    assert_eq!(process(&json)["devices"][0]["allocated"], 7);
}

#[test]
fn failure_has_its_lines_and_outcome() {
    let program = "
torch.peak[0] = 100
def forward():
    torch.observers[0](0, 50, 1000, 3)
try:
    forward()
except MemoryError:
    pass
";
    let (ran, json) = ran(&format!("{program}\nraise SystemExit(1)"), &[]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let failure = &process(&json)["failures"][0];
    let figures = ["requested", "allocated", "reserved", "step"].map(|key| failure[key].as_u64());
    assert_eq!(figures, [Some(50), Some(7), Some(8), Some(1)]);
    let lines = failure["lines"].as_array().unwrap();
    assert!(lines[0].as_str().unwrap().ends_with("program.py:5 in forward"), "{lines:?}");
    assert!(lines[1].as_str().unwrap().ends_with("program.py:7 in <module>"), "{lines:?}");
    // The program continues with less memory.
    let (ran, json) = self::ran(&format!("{program}\ntorch.step()"), &[]);
    assert_eq!((ran.code, &json["cards"][0]["outcome"]), (0, &json!("fits")), "{}", ran.stderr);
}

#[test]
fn reads_have_their_lines() {
    let program = "
from gpuheap_dry_run_hook import reads
torch.peak[0] = 1
def item(): reads.read_from_device(None)
for _ in range(10_000):
    item()
item()
";
    let (ran, json) = ran(program, &[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let line = &json["unknown"]["lines"][0];
    assert!(line["line"].as_str().unwrap().ends_with("program.py:5 in item"), "{line}");
    assert_eq!(line["times"], 10_001);
    let watchdog = "the program has read from the device 10,000 times at";
    assert!(ran.stderr.replace("\n  ", " ").contains(watchdog), "{}", ran.stderr);
}

/// Runs a callback on a thread that is started in C. That thread has no Python frame.
const ON_A_THREAD: &str = r#"
import ctypes
def on_a_thread(callback):
    thread, pthread = ctypes.c_ulong(), ctypes.CDLL(None)
    assert pthread.pthread_create(ctypes.byref(thread), None, callback, None) == 0
    assert pthread.pthread_join(thread, None) == 0
"#;

#[test]
fn native_thread_is_reported() {
    let program = "
import functools
import gpuheap_dry_run_hook as hook
torch.peak[0] = 100
on_a_thread(hook.state.callback)
print(hook.state.reads)
observer = functools.partial(torch.observers[0], 0, 50, 1000)
on_a_thread(ctypes.CFUNCTYPE(None, ctypes.c_ulonglong)(observer))
";
    let (ran, json) = ran(&format!("{ON_A_THREAD}{program}"), &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "1\n"), "{}", ran.stderr);
    let failure = &process(&json)["failures"][0];
    assert_eq!((&failure["requested"], &failure["lines"]), (&json!(50), &json!([])));
    assert!(ran.stderr.starts_with("\ngpuheap dry-run: "), "{}", ran.stderr);
}

#[test]
fn signal_during_callback_reaches_program() {
    for (raised, code, printed) in [
        ("KeyboardInterrupt", 0, "KeyboardInterrupt()\n"),
        ("OSError(5, 'late')", 0, "OSError(5, 'late')\n"),
        ("SystemExit(7)", 3, "SystemExit(7)\n"),
    ] {
        // A signal handler may raise an exception at any point of the hook's callback. In this
        // program, the method `get` raises the exception within the callback.
        let program = format!(
            "
import time
import gpuheap_dry_run_hook as hook
torch.peak[0] = 1
class Lines(dict):
    def get(self, *_): raise {raised}
hook.state.lines = Lines()
try:
    hook.state.callback(None)
    # The exception arrives between two sleeps.
    for _ in range(1000): time.sleep(0.01)
except BaseException as error:
    print(repr(error))
    if isinstance(error, SystemExit): raise
"
        );
        let (ran, json) = ran(&program, &[]);
        assert_eq!((ran.code, ran.stdout.as_str()), (code, printed), "{}", ran.stderr);
        assert!(ran.stderr.starts_with("\ngpuheap dry-run: "), "{}", ran.stderr);
        assert_eq!(json["cards"][0]["ended"]["exit"], if code == 0 { 0 } else { 7 });
    }
}

#[test]
fn operator_that_reads_decides_a_size() {
    let program = |name: &str| {
        format!(
            "
import ctypes
operators = ctypes.CDLL('./operators')
assert operators.open_device() == 0
torch.peak[0] = 1
operators['_ZN2at4_ops{name}4callERKNS_6TensorE']()
"
        )
    };
    let bench = Bench::new();
    bench.compiled_with("operators.c", &["-shared", "-fPIC", "-O0"]);
    bench.file("torch.py", TORCH);
    for (name, operator) in [
        ("7nonzero", Some("nonzero")),
        ("24repeat_interleave_Tensor", Some("repeat_interleave_Tensor")),
        // These operators only return a result to Python. No memory is allocated for the result.
        ("4item", None),
        ("5equal", None),
        // This operator checks its arguments.
        ("3cov", None),
    ] {
        let path = bench.file("program.py", &format!("import torch\n{}", program(name)));
        let (ran, json) = bench.json(&["--", "python3", &path]);
        let sizes = json["unknown"]["sizes"].as_array().unwrap();
        assert_eq!(json["unknown"]["reads"], 1, "{}", ran.stderr);
        let Some(operator) = operator else {
            assert_eq!((ran.code, &sizes[..]), (0, &[][..]), "{}", ran.stderr);
            continue;
        };
        let expected = json!({"line": format!("{path}:7 in <module>"), "operator": operator, "times": 1,
                "value": null, "is_bound": false});
        assert_eq!((ran.code, &sizes[..]), (4, &[expected][..]), "{}", ran.stderr);
        assert_eq!(json["is_lower_bound"], true);
        let words = format!("chooses: program.py:7 in <module> by {operator} (1 time)");
        assert!(ran.stderr.replace("\n", " ").contains(&words), "{}", ran.stderr);
    }
}

#[test]
fn path_of_replaced_library_is_ignored() {
    let program = "
torch.peak[0] = 1
torch.step()
import ctypes
import gpuheap_stand_ins
gpuheap_stand_ins.PRELOADED.add('libm.so.6')
print(ctypes.CDLL('/nowhere/libm.so.6').cos is not None)
try:
    ctypes.CDLL('/nowhere/libdl.so.2')
except OSError:
    print('another is')
";
    let (ran, _) = ran(program, &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "True\nanother is\n"), "{}", ran.stderr);
}

#[test]
fn replaced_allocator_is_noted() {
    let program = "
torch.cuda.get_allocator_backend = lambda: 'pluggable'
torch.cuda.memory_stats_as_nested_dict = None
torch.opened()
torch.step()
";
    let (_, json) = ran(program, &[]);
    let notes = json["notes"].to_string();
    assert!(notes.contains("replaced PyTorch's own allocator (by pluggable)"), "{notes}");
    assert!(!notes.contains("the hook failed"), "{notes}");
}

#[test]
fn failed_hook_leaves_program_running() {
    let program = "
torch.cuda.memory_stats_as_nested_dict = None
torch.step()
print('end')
";
    let (ran, json) = ran(program, &[]);
    assert_eq!(ran.stdout, "end\n", "{}", ran.stderr);
    let notes = json["notes"].to_string();
    assert!(notes.contains("the hook failed in after_step: TypeError"), "{notes}");
}

#[test]
fn heap_refusal_with_later_step_fits() {
    let program = "
import ctypes
driver, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p()
assert driver.cuInit(0) == driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
torch.cuda.get_allocator_backend = lambda: 'pluggable'
torch.opened()
size, place = ctypes.c_ulonglong(60 << 30), ctypes.c_ulonglong(0)
driver.gpuheap_emulated_request(size, place, b'a.py:1 in f', 0)
";
    let (ran, json) = ran(program, &["--card", "RTX 4090"]);
    assert_eq!((ran.code, &json["outcome"]), (1, &json!("does_not_fit")), "{}", ran.stderr);
    let (ran, json) = self::ran(&format!("{program}torch.step()"), &["--card", "RTX 4090"]);
    assert_eq!((ran.code, &json["outcome"]), (0, &json!("fits")), "{}", ran.stderr);
    assert_eq!(process(&json)["refused"][0]["then"], "step");
}

/// Program that has a model with two layers, an optimiser, and a snapshot of the memory. `at` is
/// the time of an event in microseconds.
const MODEL: &str = r#"
import time
at = lambda: time.time_ns() // 1000
frame = lambda file, line, name: {"filename": file, "line": line, "name": name}
main = frame(__file__, 9, "<module>")
library = "/usr/lib/python3/site-packages/models/gpt.py"
entries = []
def alloc(address, size, frames=(main,)):
    text = torch.texts[-1] if torch.texts else ""
    entries.append({"action": "alloc", "addr": address, "size": size, "time_us": at(),
        "user_metadata": text, "frames": list(frames), "stream": 0})
    time.sleep(0.0001)
def free(address):
    entries.append({"action": "free_requested", "addr": address, "size": 0, "time_us": at()})
class Optimiser:
    def __init__(self, parameters):
        self.param_groups, self.state = [{"params": parameters}], {}
torch.peak[0] = 1
torch.opened()
for address in 1, 2: alloc(address, 100)
alloc(3, 50, [frame("torch/nn/modules/module.py", 9, "_apply"), main])
weights = [torch.Tensor(1), torch.Tensor(2)]
layer = lambda weight, address: torch.Module([weight], run=lambda: alloc(
    address, 1000, [frame(library, 7, "forward"), frame(__file__, 3, "step"), main]))
model = torch.Module(parts={"h.0": layer(weights[0], 11), "h.1": layer(weights[1], 12)})
model()
for address in 21, 22: alloc(address, 100, [])
weights[0].grad, weights[1].grad = torch.Tensor(21), torch.Tensor(22)
alloc(99, 5000, [])
free(99)
for address in 11, 12: free(address)
time.sleep(0.0001)
optimiser = Optimiser(weights)
alloc(31, 400)
optimiser.state[weights[0]] = {"step": 1, "exp_avg": torch.Tensor(31)}
torch.step(optimiser)
torch.cuda.memory._snapshot = lambda: {"device_traces": [entries], "segments": []}
"#;

#[test]
fn peak_has_kinds_and_modules() {
    let bench = Bench::new();
    bench.file("torch.py", TORCH);
    let owners = "
import json, os, gpuheap_dry_run_hook as hook
owners = hook.state.owners.explain(torch.cuda.memory._snapshot(), lambda address, nbytes: 0)
print(json.dumps(owners))
hook.state.is_recording = False
";
    let path = bench.file("program.py", &format!("import torch\n{MODEL}{owners}"));
    let ran = bench.dry_run(&["--", "python3", &path]);
    let first = ran.stdout.lines().next();
    let owners = first.unwrap_or_else(|| panic!("{}", ran.stderr));
    let owners: Value = serde_json::from_str(owners).unwrap();
    let owners = &owners[0];
    assert_eq!(owners["live"], 7_450, "{}", ran.stderr);
    let kinds = json!([
        {"kind": "parameters", "bytes": 250, "blocks": 3},
        {"kind": "gradients", "bytes": 200, "blocks": 2},
        {"kind": "activations", "bytes": 2000, "blocks": 2},
        {"kind": "backward", "bytes": 5000, "blocks": 1},
    ]);
    assert_eq!(owners["kinds"], kinds);
    let kinds = json!({"parameters": 200, "gradients": 200, "activations": 2000});
    let module = json!({"module": "Module.h.*", "bytes": 2400, "kinds": kinds});
    assert_eq!(owners["modules"][1], module);
    let held = &owners["holders"][1];
    assert!(held["line"].as_str().unwrap().ends_with("models/gpt.py:7 in forward"), "{held}");
    assert!(held["called_from"].as_str().unwrap().ends_with("program.py:3 in step"), "{held}");
    assert_eq!(held["module"], "Module.h.*");
    assert_eq!(owners["largest_block"], 16);
}

#[test]
fn remedies_that_apply_are_reported() {
    let program = "
class AdamW(torch.optim.AdamW):
    param_groups, state = [], {}
torch.step(AdamW())
torch.data.DataLoader([], batch_size=32)
torch.opened()
torch.Module([torch.Tensor(1)])()
print(torch.hook.state.remedies.found)
";
    let (ran, json) = ran(
        &format!("import gpuheap_dry_run_hook as hook; torch.hook = hook\n{program}"),
        &["--remedies=never"],
    );
    for remedy in ["adam_8bit", "no_state", "'half_batch': '32'", "'autocast': 'bfloat16'"] {
        assert!(ran.stdout.contains(remedy), "{} {}", ran.stdout, ran.stderr);
    }
    assert!(!ran.stdout.contains("checkpoint"), "{}", ran.stdout);
    assert_eq!(json["trials"], json!([]));
}

/// Python function `read` that copies a tensor's element to the host, as PyTorch does for
/// `.item()`. The caller passes the type and the sizes of the tensor.
const READS: &str = r#"
import ctypes
from gpuheap_dry_run_hook import hang, reads
from gpuheap_dry_run_hook.results import Copy, Operand
torch.peak[0] = 1
state = reads.state
def read(kind, form, sizes=(), operator=b"_local_scalar_dense", one_of=1, most=0, sum=0, parts=1):
    def operands(found, count):
        padded = (ctypes.c_longlong * 8)(*sizes)
        found[0] = Operand(operator, kind, len(sizes), padded, one_of, most, sum)
        return 1
    state.operands = operands
    data = (form * parts)()
    reads.read_from_device(ctypes.pointer(Copy(ctypes.addressof(data), ctypes.sizeof(data), False)))
    return data[0] if parts == 1 else list(data)
"#;

#[test]
fn results_let_the_program_continue() {
    let program = "
class Flag:
    def __bool__(self):
        import sys
        from gpuheap_dry_run_hook import branches
        return branches.truth(sys._getframe(1))
isnan = lambda flag: flag
flag = Flag()
for turn in range(7):
    if flag: break
if not flag: raise ValueError
if isnan(flag): raise ValueError
assert flag
rounds = 0
while flag: rounds += 1
length = 0
while not flag and length < 9: length += 1
print(turn, rounds, length)
count = lambda **options: read(0, ctypes.c_int, (3, 4), b'nonzero', **options)
print(count(), count(one_of=4), read(4, ctypes.c_longlong), read(4, ctypes.c_longlong, most=9))
data = ctypes.c_longlong()
copy = Copy(ctypes.addressof(data), 8, False)
def done():
    return reads.read_from_device(ctypes.pointer(copy)) or data.value
for turn in range(5):
    if done() == 9: break
print(turn, read(6, ctypes.c_float), read(6, ctypes.c_float, (2, 4), b'copy_'))
";
    let printed = |options: &[&str]| {
        let (ran, json) = ran(&format!("{READS}{program}"), options);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        (ran.stdout, json)
    };
    let (stdout, json) = printed(&[]);
    assert_eq!(stdout, "6 100 9\n12 3 0 9\n4 1.0 0.25\n");
    assert!(json["notes"].to_string().contains("it ran to its last round"), "{json}");
    let line = READS.lines().position(|line| line.contains("read_from_device(")).unwrap();
    let set = format!("program.py:{}=4 + (bound or 0)", line + 2);
    assert_eq!(printed(&["--read", &set]).0, "6 100 9\n16 7 4 13\n4 4.0 4.0\n");
}

#[test]
fn numbers_end_loops_late() {
    let program = "
import weakref
from gpuheap_dry_run_hook import branches
branches.MOST_ROUNDS = 50
end, tokens = 0, []
token = lambda: read(4, ctypes.c_longlong)
for turn in range(60):
    if token() in (end, 1): break
while True:
    tokens.append(token())
    if tokens[-1] == end: break
def freed():
    last, kept = 2, lambda: None
    reference = weakref.ref(kept)
    for turn in range(2):
        if token() == last: break
        kept = None
    return reference() is None
print(turn, set(tokens[:-1]), len(tokens), token(), freed())
print(read(4, ctypes.c_longlong, (3,), sum=8, parts=3))
";
    let (ran, json) = ran(&format!("{READS}{program}"), &[]);
    assert_eq!(ran.stdout, "59 {1} 50 0 True\n[3, 3, 2]\n", "{}", ran.stderr);
    assert!(json["notes"].to_string().contains("it was left after 50 rounds"), "{json}");
}

#[test]
fn number_that_becomes_size_is_named() {
    let program = "
data = ctypes.c_longlong()
copy = Copy(ctypes.addressof(data), 8, False)
def rows():
    longest = reads.read_from_device(ctypes.pointer(copy)) or data.value
    return [5, 6][:longest]
def count():
    return reads.read_from_device(ctypes.pointer(copy)) or data.value
def cut(kept): return [5, 6][:kept]
print(read(4, ctypes.c_longlong), rows(), cut(count()))
";
    let (ran, json) = ran(&format!("{READS}{program}"), &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (4, "0 [] []\n"), "{}", ran.stderr);
    let sizes = json["unknown"]["sizes"].as_array().unwrap();
    assert_eq!((sizes.len(), &sizes[0]["operator"]), (2, &json!("item")), "{}", ran.stderr);
    assert!(json["notes"].to_string().contains("set it with --read program.py:"), "{json}");
}

#[test]
fn sequences_are_as_long_as_padding() {
    let program = "
class Padded: shape = (5, 9)
pack = torch.nn.utils.rnn.pack_padded_sequence
pack(Padded, [3, 2], True)
pack(Padded, [0, 0], batch_first=True)
pack(Padded, [1, 1, 1], enforce_sorted=False)
pack(Padded, [0, 4, 0])
print(read(4, ctypes.c_longlong, (3, 7, 5), b'_nested_tensor_from_mask', parts=6))
print(read(4, ctypes.c_int, (8,), b'_coalesce'))
";
    let (ran, json) = ran(&format!("{READS}{program}"), &[]);
    let printed = "[3, 2] True True\n[9, 9] True True\n[5, 5, 5] False False\n\
        [0, 4, 0] False True\n\
        [7, 5, 7, 5, 7, 5]\n8\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (4, printed), "{}", ran.stderr);
    assert_eq!(json["unknown"]["sizes"][0]["operator"], "pack_padded_sequence", "{json}");
}

#[test]
fn library_code_has_own_results() {
    let program = "
data = ctypes.c_longlong(7)
copy = Copy(ctypes.addressof(data), 8, False)
print(read(4, ctypes.c_int, (5,), b'nonzero'))
code = 'def _retrieve_segment(): reads.read_from_device(ctypes.pointer(copy)); return data.value'
exec(compile(code, 'models/whisper/generation_whisper.py', 'exec'))
print(_retrieve_segment())
reads.operator_that_reads = lambda: ('istft', True)
print(read(11, ctypes.c_bool))
";
    let (ran, _) = ran(&format!("{READS}{program}"), &[]);
    assert_eq!(ran.stdout, "5\n0\nFalse\n", "{}", ran.stderr);
}

#[test]
fn program_that_waits_is_ended() {
    let program = "
hang.SECONDS = 0.2
while not read(4, ctypes.c_longlong):
    pass
";
    let (ran, json) = ran(&format!("{READS}{program}"), &[]);
    assert_eq!((ran.code, &json["cards"][0]["reason"]), (3, &json!("hang")), "{}", ran.stderr);
    assert!(json["notes"].to_string().contains("waits for a result at"), "{json}");
}

#[test]
fn smallest_counts_range_by_line() {
    let program = "
reads.operator_that_reads = lambda: ('nonzero', True)
found = first(0, ctypes.c_int, (3, 4), b'nonzero')
assert found > 0
torch.peak[0] = 1 + 10 * found + second(0, ctypes.c_int, (5,), b'nonzero')
torch.step()
";
    // Defines the function `read` twice, so that `first` and `second` are at different lines.
    let twice = format!("{READS}first = read\n{READS}second = read\n{program}");
    let (ran, json) = ran(&twice, &["--read-range"]);
    let range = &json["range"];
    let figures = |end: &Value| (end["counts"]["at_most"].clone(), end["allocated"].clone());
    assert_eq!(range["largest"]["allocated"], 126, "{}", ran.stderr);
    assert_eq!(figures(&range["smallest"]), (json!(1), json!(12)), "{}", ran.stderr);
    // The program asserts that the count at the line of `first` is above 0, so the smallest count
    // there is 1. The smallest count at the line of `second` is 0.
    let lines: Vec<_> = range["lines"].as_array().unwrap().iter().map(figures).collect();
    assert_eq!(lines, [(json!(1), json!(16)), (json!(0), json!(121))], "{range}");
    assert!(ran.stderr.contains("less allocated; 0 at"), "{}", ran.stderr);
}

/// PyTorch snapshot with one event for each of `sizes`. The function `pick` makes all requests.
const SNAPSHOT: &str = r#"
def snapshot(*sizes):
    frames = [{"filename": "pick.py", "line": 7, "name": "pick"}]
    events = [
        {"action": "alloc", "addr": 512 * at, "size": size, "stream": 0, "frames": frames}
        for at, size in enumerate(sizes, 1)
    ]
    return {"segments": [], "device_traces": [events]}
"#;

#[test]
fn absurd_granted_request_proves_nothing() {
    let of = |sizes: &str, line: u32| {
        let program = format!(
            "{SNAPSHOT}
from gpuheap_dry_run_hook import reads, results
torch.memory._snapshot = lambda: snapshot({sizes})
torch.opened()
torch.peak[0] = 1000
code = compile('def pick(): pass', 'pick.py', 'exec').co_consts[0]
read = reads.Reads()
read.times, read.last = 1, results.Result(9, True)
reads.state.sizes[((code, {line}), 'nonzero')] = read
"
        );
        let (ran, json) = ran(&program, &[]);
        (json["cards"][0]["reason"].clone(), json["notes"].to_string(), ran)
    };
    let (reason, notes, ran) = of("1 << 25, 1 << 25, 6 << 25", 3);
    assert_eq!((ran.code, &reason), (3, &json!("absurd_request")), "{}", ran.stderr);
    let text =
        "192 MiB was requested at pick.py:7 in pick, and all other blocks together take 64 MiB";
    assert!(notes.contains(text), "{notes}");
    // A request is absurd only if it has at least 64 MiB and three times the sum of all other
    // blocks. These programs have no such request, so they get a verdict.
    for sizes in ["1 << 25, 1 << 25, 5 << 25", "1 << 20, 1 << 20, 6 << 20"] {
        let (reason, _, ran) = of(sizes, 3);
        assert_eq!((ran.code, &reason), (4, &Value::Null), "{}", ran.stderr);
    }
}

/// Stand-ins for the parts of PyTorch that shard a model. A sharded tensor has only its rank's part
/// of the bytes.
const SHARDING: &str = r#"
class Model(Module):
    def named_parameters(self):
        for name, part in self.named_modules():
            yield from ((f"{name}.{key}", tensor) for key, tensor in part._parameters.items())
    def to(self, device): return self
    def cuda(self, device=None): return self
class Blocks(Model): pass
nn.Module, nn.ModuleList = Model, Blocks
Tensor.part = 1.0
class Shard(Tensor):
    def __init__(self, whole, ranks):
        super().__init__(whole.address)
        self.part = whole.part / ranks
sharded, groups = [], []
def fully_shard(model, mesh, offload_policy=None):
    sharded.append(model)
    for part in model.modules():
        for key, tensor in part._parameters.items():
            if not isinstance(tensor, Shard):
                part._parameters[key] = Shard(tensor, mesh)
class FSDPModule: pass
distributed = module("torch.distributed", is_available=lambda: True, HashStore=lambda: None,
    is_initialized=lambda: bool(groups),
    init_process_group=lambda *backend, **options: groups.append(options))
module("torch.distributed.fsdp", FSDPModule=FSDPModule, fully_shard=fully_shard,
    CPUOffloadPolicy=lambda pin_memory: "host")
module("torch.distributed.device_mesh", init_device_mesh=lambda kind, shape: shape[0])
class Optimizer: pass
class SGD(Optimizer): pass
optim.Optimizer, optim.SGD = Optimizer, SGD
_C._nn = types.SimpleNamespace(_parse_to=lambda device: [types.SimpleNamespace(type=device)])
cuda.current_device, cuda.set_device = lambda: 0, lambda device: None
entered = []
class Hooks:
    def __init__(self, pack, unpack): pass
    def __enter__(self): entered.append(self)
    def __exit__(self, *error): pass
autograd = types.SimpleNamespace(graph=types.SimpleNamespace(saved_tensors_hooks=Hooks))
in_backward = [-1]
_C._current_graph_task_id = lambda: in_backward[0]
"#;

#[test]
fn fsdp_and_offload_run() {
    let bench = Bench::new();
    bench.file("torch.py", &format!("{TORCH}{SHARDING}"));
    let program = "import torch
torch.memory._snapshot = lambda: snapshot(5000)
block = lambda at: torch.Model([torch.Tensor(at)], {'in': torch.Model([torch.Tensor(at + 1)])})
blocks = torch.nn.ModuleList(parts={'0': block(2), '1': block(4)})
model = torch.Model([torch.Tensor(1)], {'blocks': blocks})
optimizer = torch.optim.Optimizer()
optimizer.param_groups = [{'params': list(model.parameters())}]
model.to('cuda')
torch.opened()
model()
# The backward pass recomputes a block.
torch.in_backward[0] = 5
next(iter(blocks.children()))()
torch.in_backward[0] = -1
if torch.sharded:
    assert torch.sharded == [*blocks.children(), model], torch.sharded
    assert torch.groups[0]['rank'] == 0
held = optimizer.param_groups[0]['params']
torch.peak[0] = int(sum(1000 * tensor.part for tensor in held)) - len(torch.entered)
torch.step()
";
    let path = bench.file("program.py", &format!("{SNAPSHOT}{program}"));
    let (ran, json) = bench.json(&["--remedies", "--", "python3", &path]);
    let of = |name: &str| {
        let mut trials = json["trials"].as_array().unwrap().iter();
        let trial = trials.find(|trial| trial["remedy"] == name);
        trial.map(|trial| (trial["allocated"].clone(), trial["is_estimate"].clone()))
    };
    assert_eq!(json["cards"][0]["processes"][0]["devices"][0]["allocated"], 5000, "{}", ran.stderr);
    let offloaded = of("offload_activations");
    assert_eq!(offloaded, Some((json!(4999), json!(false))), "{}", json["trials"]);
    for (ranks, bytes) in [(2, 2500), (4, 1250), (8, 625)] {
        let found = of(&format!("fsdp_{ranks}"));
        assert_eq!(found, Some((json!(bytes), json!(false))), "{ranks}: {}", json["trials"]);
    }
}
