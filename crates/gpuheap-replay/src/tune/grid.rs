//! The settings that a search tries: plain ones first, then those that people combine.

use super::{Budget, Family, Trial};
use crate::Program;
use crate::models::cuda::Cuda;
use crate::models::{Model, build};

const MIB: u64 = 1 << 20;

/// Returns the settings to try for a program, the framework's default first.
pub(super) fn of(program: &Program, family: Family, budget: &Budget) -> Vec<Trial> {
    match family {
        Family::Torch => torch(budget),
        Family::Rmm => rmm(program),
        Family::CuPy => cupy(program),
    }
}

fn torch(budget: &Budget) -> Vec<Trial> {
    /// The example of PyTorch's documentation.
    const LIST: &str = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]";
    let rounding = |divisions: u64| format!("roundup_power2_divisions:{divisions}");
    let split = |mib: u64| format!("max_split_size_mb:{mib}");
    let mut texts = Vec::new();
    if budget.vmm {
        let growing = "expandable_segments:True";
        texts.push(growing.to_owned());
        texts.extend([2, 4, 8, 16].map(|divisions| format!("{growing},{}", rounding(divisions))));
        texts.push(format!("{growing},{LIST}"));
    }
    texts.extend([32, 64, 128, 256, 512].map(split));
    texts.extend([2, 4, 8, 16].map(rounding));
    texts.push(LIST.to_owned());
    for mib in [64, 128, 256, 512] {
        texts.extend([4, 8].map(|divisions| format!("{},{}", split(mib), rounding(divisions))));
    }
    let collecting = |threshold: f64| format!("garbage_collection_threshold:{threshold}");
    let mut trials = vec![Trial {
        setting: "unset PYTORCH_CUDA_ALLOC_CONF".to_owned(),
        model: "torch".to_owned(),
    }];
    trials.extend(texts.into_iter().map(|text| Trial {
        setting: format!("PYTORCH_CUDA_ALLOC_CONF={text}"),
        model: format!("torch:{text}"),
    }));
    // Without a memory fraction PyTorch collects nothing.
    const FRACTION: f64 = 0.95;
    for text in [collecting(0.6), collecting(0.8), format!("{},{}", collecting(0.8), split(128))] {
        trials.push(Trial {
            setting: format!(
                "PYTORCH_CUDA_ALLOC_CONF={text}  \
                 # and torch.cuda.set_per_process_memory_fraction({FRACTION})"
            ),
            model: format!("torch:{text},per_process_memory_fraction:{FRACTION}"),
        });
    }
    trials
}

fn rmm(program: &Program) -> Vec<Trial> {
    let peak = peak_of_blocks(program);
    let resource = |resource: &str, model: String| Trial {
        setting: format!("rmm.mr.set_current_device_resource(rmm.mr.{resource})"),
        model,
    };
    let over_cuda = |name: &str, arguments: String, model: String| {
        resource(&format!("{name}(rmm.mr.CudaMemoryResource(), {arguments})"), model)
    };
    let mut trials = vec![
        resource("CudaMemoryResource()", "cuda".to_owned()),
        resource("CudaAsyncMemoryResource()", "rmm:async".to_owned()),
        over_cuda("PoolMemoryResource", "initial_pool_size=0".to_owned(), {
            "rmm:pool:initial_pool_size:0".to_owned()
        }),
    ];
    // Parts of the most bytes in blocks, in sixteenths.
    for sixteenths in [4, 8, 16, 17, 18, 20, 22, 24, 28, 32] {
        let bytes = part(peak, sixteenths);
        trials.push(over_cuda(
            "PoolMemoryResource",
            format!("initial_pool_size={}", shown(bytes)),
            format!("rmm:pool:initial_pool_size:{bytes}"),
        ));
    }
    for sixteenths in [16, 17, 18, 20, 22, 24, 28, 32] {
        let bytes = part(peak, sixteenths);
        trials.push(over_cuda(
            "ArenaMemoryResource",
            format!("arena_size={}", shown(bytes)),
            format!("rmm:arena:arena_size:{bytes}"),
        ));
    }
    for (initial, maximum) in [(4, 18), (8, 20), (8, 24)] {
        let (initial, maximum) = (part(peak, initial), part(peak, maximum));
        trials.push(over_cuda(
            "PoolMemoryResource",
            format!("initial_pool_size={}, maximum_pool_size={}", shown(initial), shown(maximum)),
            format!("rmm:pool:initial_pool_size:{initial},maximum_pool_size:{maximum}"),
        ));
    }
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
    let trial =
        |setting: &str, model: &str| Trial { setting: setting.to_owned(), model: model.to_owned() };
    let mut trials = vec![
        trial("cupy.get_default_memory_pool().set_limit(size=0)", "cupy"),
        trial("cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)", "rmm:async"),
        trial("cupy.cuda.set_allocator(None)", "cuda"),
    ];
    // A limit has the pool give memory back that it would keep.
    let unlimited = build("cupy", u64::MAX);
    let most = unlimited.map_or(0, |mut model| program.run(&mut *model).figures.peak_reserved);
    for sixteenths in (4..16).rev() {
        let bytes = part(most, sixteenths);
        trials.push(trial(
            &format!("cupy.get_default_memory_pool().set_limit(size={})", shown(bytes)),
            &format!("cupy:limit:{bytes}"),
        ));
    }
    trials
}

/// The most bytes in blocks of the program at one time, as `cudaMalloc` rounds them.
fn peak_of_blocks(program: &Program) -> u64 {
    let mut model = Cuda::new(u64::MAX);
    program.run(&mut model);
    model.figures().peak_active
}

/// Sixteenths of `bytes`, rounded up to a number that can be read: whole MiB of three digits or so.
fn part(bytes: u64, sixteenths: u64) -> u64 {
    const DIGITS: u32 = 8;
    let bytes = bytes.saturating_mul(sixteenths) / 16;
    let step = 1_u64 << bytes.checked_ilog2().unwrap_or(0).saturating_sub(DIGITS);
    bytes.max(MIB).checked_next_multiple_of(step.max(MIB)).unwrap_or(bytes / MIB * MIB)
}

/// A size as Python takes it.
fn shown(bytes: u64) -> String {
    format!("{} << 20", bytes / MIB)
}
