//! Settings that a search tries: plain ones first, then combinations that people use.

use super::{Budget, Family};
use crate::Program;
use crate::models::cuda::Cuda;
use crate::models::torch::Version;
use crate::models::{Model, build};
use crate::text::shell_quoted;

const MIB: u64 = 1 << 20;

/// A setting that is to be tried.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    pub(super) setting: String,
    pub(super) python: Option<String>,
    pub(super) model: String,
}

/// Returns the settings to try for a program: the framework's default, then plain ones, then
/// combinations.
pub(super) fn of(program: &Program, family: Family, budget: &Budget) -> Vec<Trial> {
    match family {
        Family::Torch => torch(program, budget),
        Family::Rmm => rmm(program),
        Family::CuPy => cupy(program),
    }
}

fn torch(program: &Program, budget: &Budget) -> Vec<Trial> {
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
    // The program's release and memory fraction stay.
    let mut kept = String::new();
    let version = program.recorded_version().filter(|version| *version != Version::default());
    if let Some(version) = version {
        kept += &format!(",version:{version}");
    }
    let fraction = |fraction: f64| format!(",per_process_memory_fraction:{fraction}");
    // A fraction of 1 is no limit.
    let limit = budget.memory_fraction.filter(|part| *part < 1.0).map(fraction).unwrap_or_default();
    let mut trials = vec![Trial {
        setting: "unset PYTORCH_CUDA_ALLOC_CONF".to_owned(),
        python: None,
        model: format!("torch:expandable_segments:False{kept}{limit}"),
    }];
    trials.extend(texts.into_iter().map(|text| Trial {
        setting: format!("PYTORCH_CUDA_ALLOC_CONF={}", shell_quoted(&text)),
        python: None,
        model: format!("torch:{text}{kept}{limit}"),
    }));
    let collecting = |threshold: f64| format!("garbage_collection_threshold:{threshold}");
    // PyTorch collects only with a memory fraction.
    const FRACTION: f64 = 0.95;
    let (limit, python) = match budget.memory_fraction {
        Some(given) => (fraction(given), None),
        None => (
            fraction(FRACTION),
            Some(format!("torch.cuda.set_per_process_memory_fraction({FRACTION})")),
        ),
    };
    for text in [collecting(0.6), collecting(0.8), format!("{},{}", collecting(0.8), split(128))] {
        trials.push(Trial {
            setting: format!("PYTORCH_CUDA_ALLOC_CONF={text}"),
            python: python.clone(),
            model: format!("torch:{text}{kept}{limit}"),
        });
    }
    trials
}

fn rmm(program: &Program) -> Vec<Trial> {
    let peak = peak_of_blocks(program);
    let resource = |resource: &str, model: String| Trial {
        setting: format!("rmm.mr.set_current_device_resource(rmm.mr.{resource})"),
        python: None,
        model,
    };
    let over_cuda = |name: &str, arguments: String, model: String| {
        resource(&format!("{name}(rmm.mr.CudaMemoryResource(), {arguments})"), model)
    };
    let pool = |initial: u64, maximum: Option<u64>| {
        let (text, limit) = match maximum {
            Some(bytes) => (
                format!(", maximum_pool_size={}", shown(bytes)),
                format!(",maximum_pool_size:{}", typed(bytes)),
            ),
            None => Default::default(),
        };
        let initial_text = shown(initial);
        Trial {
            setting: format!(
                "rmm.reinitialize(pool_allocator=True, initial_pool_size={initial_text}{text})"
            ),
            python: None,
            model: format!("rmm:pool:initial_pool_size:{}{limit}", typed(initial)),
        }
    };
    let mut trials = vec![
        resource("CudaMemoryResource()", "cuda".to_owned()),
        resource("CudaAsyncMemoryResource()", "rmm:async".to_owned()),
    ];
    // Initial sizes, in sixteenths of the peak of bytes in blocks.
    trials.extend(
        [1, 4, 8, 16, 17, 18, 20, 22, 24, 28, 32]
            .map(|sixteenths| pool(part(peak, sixteenths), None)),
    );
    for sixteenths in [16, 17, 18, 20, 22, 24, 28, 32] {
        let bytes = part(peak, sixteenths);
        trials.push(over_cuda(
            "ArenaMemoryResource",
            format!("arena_size={}", shown(bytes)),
            format!("rmm:arena:arena_size:{}", typed(bytes)),
        ));
    }
    trials.extend(
        [(4, 18), (8, 20), (8, 24)]
            .map(|(initial, maximum)| pool(part(peak, initial), Some(part(peak, maximum)))),
    );
    for (smallest, largest) in [(8, 16), (12, 18), (18, 22)] {
        trials.push(over_cuda(
            "BinningMemoryResource",
            format!("{smallest}, {largest}"),
            format!("rmm:binning:min_size_exponent:{smallest},max_size_exponent:{largest}"),
        ));
    }
    trials
}

fn cupy(program: &Program) -> Vec<Trial> {
    let trial = |setting: &str, model: &str| Trial {
        setting: setting.to_owned(),
        python: None,
        model: model.to_owned(),
    };
    let mut trials = vec![
        trial("cupy.get_default_memory_pool().set_limit(size=0)", "cupy"),
        trial("cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)", "rmm:async"),
        trial("cupy.cuda.set_allocator(None)", "cuda"),
    ];
    // Under a limit, the pool gives back memory that it would keep.
    let unlimited = build("cupy", u64::MAX);
    let most = unlimited.map_or(0, |mut model| program.run(&mut *model).figures.peak_reserved);
    for sixteenths in (4..16).rev() {
        let bytes = part(most, sixteenths);
        trials.push(trial(
            &format!("cupy.get_default_memory_pool().set_limit(size={})", shown(bytes)),
            &format!("cupy:limit:{}", typed(bytes)),
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

/// Returns sixteenths of `bytes`, rounded up to whole MiB with some three digits.
fn part(bytes: u64, sixteenths: u64) -> u64 {
    const DIGITS: u32 = 8;
    let bytes = bytes.saturating_mul(sixteenths) / 16;
    let step = 1_u64 << bytes.checked_ilog2().unwrap_or(0).saturating_sub(DIGITS);
    bytes.max(MIB).checked_next_multiple_of(step.max(MIB)).unwrap_or(bytes / MIB * MIB)
}

/// Formats a size for Python.
fn shown(bytes: u64) -> String {
    format!("{} << 20", bytes / MIB)
}

/// Formats a size for `--pool`.
fn typed(bytes: u64) -> String {
    format!("{}MiB", bytes / MIB)
}
