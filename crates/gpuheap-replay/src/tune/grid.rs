//! Lists the settings that a search tries: plain settings, then combinations that people use.

use super::{Budget, Family};
use crate::Program;
use crate::models::cuda::Cuda;
use crate::models::torch::Version;
use crate::models::{Model, build};
use crate::text::shell_word;

const MIB: u64 = 1 << 20;

/// Settings, and the memory and driver calls of the program under these settings.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// Exact line to type: for PyTorch an environment variable, otherwise a line of Python.
    pub setting: String,
    /// A line of Python that the setting needs as well.
    pub python: Option<String>,
    /// Model and settings, as [`build`](crate::models::build) takes them.
    pub model: String,
    /// Peak of bytes taken from the driver.
    pub reserved_peak: u64,
    /// Number of driver calls that take memory or give it back.
    pub driver_calls: u64,
    /// `true` if a request fails under the setting. The figures end at the failure.
    pub fails: bool,
}

impl Candidate {
    /// Returns settings that were not tried yet. All figures are zero.
    fn new(setting: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            setting: setting.into(),
            python: None,
            model: model.into(),
            reserved_peak: 0,
            driver_calls: 0,
            fails: false,
        }
    }
}

/// Returns the settings to try for a program: the framework's default, then plain settings, then
/// combinations.
pub(super) fn list_settings(program: &Program, family: Family, budget: &Budget) -> Vec<Candidate> {
    match family {
        Family::Torch => torch(program, budget),
        Family::Rmm => rmm(program),
        Family::CuPy => cupy(program),
    }
}

fn torch(program: &Program, budget: &Budget) -> Vec<Candidate> {
    /// The example in PyTorch's documentation.
    const LIST: &str = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]";
    let rounding = |divisions: u64| format!("roundup_power2_divisions:{divisions}");
    let split = |mib: u64| format!("max_split_size_mb:{mib}");
    let growing = "expandable_segments:True";
    let mut texts = vec![growing.to_owned()];
    texts.extend([128, 512, 64, 256, 32].map(split));
    texts.extend([4, 8, 2, 16].map(rounding));
    texts.extend([4, 8, 2, 16].map(|divisions| format!("{growing},{}", rounding(divisions))));
    texts.extend([LIST.to_owned(), format!("{growing},{LIST}")]);
    for mib in [128, 512, 64, 256] {
        texts.extend([4, 8].map(|divisions| format!("{},{}", split(mib), rounding(divisions))));
    }
    texts.retain(|text| budget.vmm || !text.contains(growing));
    // All candidates keep the recorded release of PyTorch and the program's memory fraction.
    let mut kept = String::new();
    let version = program.recorded_version().filter(|version| *version != Version::default());
    if let Some(version) = version {
        kept += &format!(",version:{version}");
    }
    let fraction = |fraction: f64| format!(",per_process_memory_fraction:{fraction}");
    // A fraction of 1 is no limit.
    let limit = budget.memory_fraction.filter(|part| *part < 1.0).map(fraction).unwrap_or_default();
    let mut trials = vec![Candidate::new(
        "unset PYTORCH_CUDA_ALLOC_CONF",
        format!("torch:expandable_segments:False{kept}{limit}"),
    )];
    trials.extend(texts.into_iter().map(|text| {
        let setting = format!("PYTORCH_CUDA_ALLOC_CONF={}", shell_word(&text));
        Candidate::new(setting, format!("torch:{text}{kept}{limit}"))
    }));
    let collecting = |threshold: f64| format!("garbage_collection_threshold:{threshold}");
    // PyTorch collects only with a memory fraction.
    const FRACTION: f64 = 0.95;
    let limit = fraction(budget.memory_fraction.unwrap_or(FRACTION));
    let python = match budget.memory_fraction {
        Some(_) => None,
        None => Some(format!("torch.cuda.set_per_process_memory_fraction({FRACTION})")),
    };
    for text in [collecting(0.6), collecting(0.8), format!("{},{}", collecting(0.8), split(128))] {
        let setting = format!("PYTORCH_CUDA_ALLOC_CONF={text}");
        let model = format!("torch:{text}{kept}{limit}");
        trials.push(Candidate { python: python.clone(), ..Candidate::new(setting, model) });
    }
    trials
}

fn rmm(program: &Program) -> Vec<Candidate> {
    let peak = peak_of_blocks(program);
    let part = |sixteenths: u64| part(peak, sixteenths);
    let resource = |resource: &str, model: &str| {
        let line = format!("rmm.mr.set_current_device_resource(rmm.mr.{resource})");
        Candidate::new(line, model)
    };
    let over_cuda = |name: &str, arguments: &str, model: &str| {
        resource(&format!("{name}(rmm.mr.CudaMemoryResource(), {arguments})"), model)
    };
    let pool = |initial: u64, (argument, setting): (String, String)| {
        let line = format!(
            "rmm.reinitialize(pool_allocator=True, initial_pool_size={}{argument})",
            python_size(initial)
        );
        Candidate::new(line, format!("rmm:pool:initial_pool_size:{}{setting}", pool_size(initial)))
    };
    let mut trials = vec![
        resource("CudaMemoryResource()", "cuda"),
        resource("CudaAsyncMemoryResource()", "rmm:async"),
    ];
    for sixteenths in [1, 4, 8, 16, 17, 18, 20, 22, 24, 28, 32] {
        trials.push(pool(part(sixteenths), Default::default()));
    }
    for sixteenths in [16, 17, 18, 20, 22, 24, 28, 32] {
        let bytes = part(sixteenths);
        trials.push(over_cuda(
            "ArenaMemoryResource",
            &format!("arena_size={}", python_size(bytes)),
            &format!("rmm:arena:arena_size:{}", pool_size(bytes)),
        ));
    }
    for (initial, maximum) in [(4, 18), (8, 20), (8, 24)] {
        let bytes = part(maximum);
        let argument = format!(", maximum_pool_size={}", python_size(bytes));
        let setting = format!(",maximum_pool_size:{}", pool_size(bytes));
        trials.push(pool(part(initial), (argument, setting)));
    }
    for (smallest, largest) in [(8, 16), (12, 18), (18, 22)] {
        trials.push(over_cuda(
            "BinningMemoryResource",
            &format!("{smallest}, {largest}"),
            &format!("rmm:binning:min_size_exponent:{smallest},max_size_exponent:{largest}"),
        ));
    }
    trials
}

fn cupy(program: &Program) -> Vec<Candidate> {
    let mut trials = vec![
        Candidate::new("cupy.get_default_memory_pool().set_limit(size=0)", "cupy"),
        Candidate::new("cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)", "rmm:async"),
        Candidate::new("cupy.cuda.set_allocator(None)", "cuda"),
    ];
    // The model has no limit, because a pool under a limit gives back memory that it would
    // otherwise keep.
    let unlimited = build("cupy", u64::MAX);
    let most = unlimited.map_or(0, |mut model| program.run(&mut *model).figures.peak_reserved);
    for sixteenths in (4..16).rev() {
        let bytes = part(most, sixteenths);
        trials.push(Candidate::new(
            format!("cupy.get_default_memory_pool().set_limit(size={})", python_size(bytes)),
            format!("cupy:limit:{}", pool_size(bytes)),
        ));
    }
    trials
}

/// Returns the peak of bytes in the program's blocks, as `cudaMalloc` rounds them.
fn peak_of_blocks(program: &Program) -> u64 {
    let mut model = Cuda::new(u64::MAX);
    program.run(&mut model);
    model.figures().peak_active
}

/// Returns `sixteenths` / 16 of `bytes`, rounded up to whole MiB with about three digits.
fn part(bytes: u64, sixteenths: u64) -> u64 {
    const DIGITS: u32 = 8;
    let bytes = bytes.saturating_mul(sixteenths) / 16;
    let step = 1_u64 << bytes.checked_ilog2().unwrap_or(0).saturating_sub(DIGITS);
    bytes.max(MIB).checked_next_multiple_of(step.max(MIB)).unwrap_or(bytes / MIB * MIB)
}

/// Formats a size for Python.
fn python_size(bytes: u64) -> String {
    format!("{} << 20", bytes / MIB)
}

/// Formats a size for `--pool`.
fn pool_size(bytes: u64) -> String {
    format!("{}MiB", bytes / MIB)
}
