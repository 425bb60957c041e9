//! cuFFT: plans and their work areas. Computes nothing.

mod workspace;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_longlong};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap_driver::abi::{self, Code};
use gpuheap_driver::{CUdeviceptr, CUstream, Driver, export};

use crate::device::{self, Loaded, driver};
use crate::report;
use workspace::{Kind, Transform};

/// Version of cuFFT to return: 12.0, of CUDA 13.0.
const VERSION: c_int = 12_000;

/// Result code of a cuFFT function.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct CufftCode(c_int);

impl CufftCode {
    const INVALID_PLAN: Self = Self(1);
    const ALLOC_FAILED: Self = Self(2);
    const INVALID_TYPE: Self = Self(3);
    const INVALID_VALUE: Self = Self(4);
    const INVALID_SIZE: Self = Self(8);
}

impl Code for CufftCode {
    const SUCCESS: Self = Self(0);
    const NULL: Self = Self::INVALID_VALUE;
    /// `CUFFT_INTERNAL_ERROR`.
    const PANICKED: Self = Self(5);
}

type Outcome<T = ()> = Result<T, CufftCode>;
type Out<T> = abi::Out<T, CufftCode>;
type In<T> = abi::In<T, CufftCode>;

/// Plan of transforms, and its work area.
#[derive(Default)]
struct Plan {
    stream: CUstream,
    /// `true` if the program provides the work area.
    is_provided: bool,
    /// Size of the work area, in bytes.
    bytes: usize,
    /// Work area that the plan allocated; 0 if none.
    area: CUdeviceptr,
    /// Tables that the plan keeps; 0 if none.
    tables: CUdeviceptr,
}

impl Plan {
    /// Sets the transforms. Allocates the plan's tables, and a work area unless the program
    /// provides one.
    fn set(&mut self, transform: &Transform) -> Outcome<usize> {
        self.bytes = transform.workspace() as usize;
        replace(&mut self.tables, transform.tables() as usize)?;
        replace(&mut self.area, if self.is_provided { 0 } else { self.bytes })?;
        Ok(self.bytes)
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        let _ = replace(&mut self.tables, 0);
        let _ = replace(&mut self.area, 0);
    }
}

/// Frees a buffer of an FFT plan, and allocates a buffer of `bytes` in its place.
fn replace(memory: &mut CUdeviceptr, bytes: usize) -> Outcome {
    if let Some(driver) = driver().filter(|_| *memory != 0) {
        // SAFETY: the plan allocated the memory. No work uses it, because kernels do not run.
        let _ = unsafe { driver.cuMemFree_v2(*memory) };
    }
    *memory = 0;
    if bytes > 0 {
        *memory = device::allocate(bytes).ok_or(CufftCode::ALLOC_FAILED)?;
    }
    Ok(())
}

/// Plans, keyed by handle, and the next handle.
static PLANS: Mutex<(BTreeMap<c_int, Plan>, c_int)> = Mutex::new((BTreeMap::new(), 1));

fn plans() -> MutexGuard<'static, (BTreeMap<c_int, Plan>, c_int)> {
    PLANS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with<R>(plan: c_int, change: impl FnOnce(&mut Plan) -> R) -> Outcome<R> {
    plans().0.get_mut(&plan).map(change).ok_or(CufftCode::INVALID_PLAN)
}

/// Creates a plan without transforms, and returns its handle. Fails if the device has too little
/// memory for cuFFT's code.
fn create() -> Outcome<c_int> {
    report::add_line("cuFFT", "work areas are by rules that were measured on an H200");
    if !device::load(Loaded::Cufft) {
        return Err(CufftCode::ALLOC_FAILED);
    }
    let mut plans = plans();
    let number = plans.1;
    plans.1 += 1;
    plans.0.insert(number, Plan::default());
    Ok(number)
}

/// Sets a plan's transforms, and writes the size of the work area.
fn make(plan: c_int, transform: Outcome<Transform>, bytes: Out<usize>) -> Outcome {
    let transform = transform?;
    bytes.write_if_wanted(with(plan, |plan| plan.set(&transform))??)
}

/// Creates a plan for `transform`, and writes the plan's handle.
fn plan(made: Out<c_int>, transform: Outcome<Transform>) -> Outcome {
    let transform = transform?;
    made.require()?;
    let number = create()?;
    make(number, Ok(transform), Out::NULL).inspect_err(|_| drop(plans().0.remove(&number)))?;
    made.write(number)
}

/// Returns the transforms for a `cufftType`. cuFFT's older functions pass this type.
fn typed(kind: c_int, sizes: &[i64], batch: i64) -> Outcome<Transform> {
    let (kind, scalar) = match kind {
        0x29 => (Kind::Complex, 4),
        0x2a => (Kind::FromReal, 4),
        0x2c => (Kind::ToReal, 4),
        0x69 => (Kind::Complex, 8),
        0x6a => (Kind::FromReal, 8),
        0x6c => (Kind::ToReal, 8),
        _ => return Err(CufftCode::INVALID_TYPE),
    };
    transform(kind, scalar, sizes, batch)
}

fn transform(kind: Kind, scalar: u64, sizes: &[i64], batch: i64) -> Outcome<Transform> {
    if sizes.is_empty() || sizes.iter().chain([&batch]).any(|size| *size < 1) {
        return Err(CufftCode::INVALID_SIZE);
    }
    let sizes = sizes.iter().map(|size| *size as u64).collect();
    Ok(Transform { kind, scalar, sizes, batch: batch as u64 })
}

fn many(kind: c_int, rank: c_int, sizes: In<c_int>, batch: c_int) -> Outcome<Transform> {
    let sizes = sizes.get_all(usize::try_from(rank).map_err(|_| CufftCode::INVALID_VALUE)?)?;
    typed(kind, &sizes.into_iter().map(i64::from).collect::<Vec<_>>(), i64::from(batch))
}

// Some functions declare fewer arguments than callers pass. The difference is harmless: in every C
// ABI of Unix, the caller cleans up the arguments after the call.
export! {
    fn cufftGetVersion(version: Out<c_int>) -> Outcome {
        version.write(VERSION)
    }

    /// Creates a plan without transforms, and writes its handle.
    fn cufftCreate(made: Out<c_int>) -> Outcome {
        made.require()?;
        made.write(create()?)
    }

    /// Destroys a plan, and frees its memory.
    fn cufftDestroy(plan: c_int) -> Outcome {
        plans().0.remove(&plan).map(drop).ok_or(CufftCode::INVALID_PLAN)
    }

    fn cufftSetAutoAllocation(plan: c_int, allocates: c_int) -> Outcome {
        with(plan, |plan| plan.is_provided = allocates == 0)
    }

    /// Accepts the program's work area, and frees the plan's work area.
    fn cufftSetWorkArea(plan: c_int) -> Outcome {
        with(plan, |plan| replace(&mut plan.area, 0))?
    }

    fn cufftSetStream(plan: c_int, stream: CUstream) -> Outcome {
        with(plan, |plan| plan.stream = stream)
    }

    fn cufftGetSize(plan: c_int, bytes: Out<usize>) -> Outcome {
        bytes.write(with(plan, |plan| plan.bytes)?)
    }

    /// Enqueues an empty kernel on the plan's stream, in place of the transform.
    fn cufftExecC2C | cufftExecC2R | cufftExecD2Z | cufftExecR2C | cufftExecZ2D | cufftExecZ2Z |
        cufftXtExec(plan: c_int) -> Outcome
    {
        device::launch(with(plan, |plan| plan.stream)?);
        Ok(())
    }

    fn cufftPlan1d(made: Out<c_int>, size: c_int, kind: c_int, batch: c_int) -> Outcome {
        plan(made, typed(kind, &[size.into()], batch.into()))
    }

    fn cufftPlan2d(made: Out<c_int>, rows: c_int, columns: c_int, kind: c_int) -> Outcome {
        plan(made, typed(kind, &[rows, columns].map(i64::from), 1))
    }

    fn cufftPlan3d(made: Out<c_int>, x: c_int, y: c_int, z: c_int, kind: c_int) -> Outcome {
        plan(made, typed(kind, &[x, y, z].map(i64::from), 1))
    }

    fn cufftPlanMany(
        made: Out<c_int>, rank: c_int, sizes: In<c_int>, _input: In<c_int>, _input_stride: c_int,
        _input_distance: c_int, _output: In<c_int>, _output_stride: c_int, _output_distance: c_int,
        kind: c_int, batch: c_int,
    ) -> Outcome {
        plan(made, many(kind, rank, sizes, batch))
    }

    fn cufftMakePlan1d(
        plan: c_int, size: c_int, kind: c_int, batch: c_int, bytes: Out<usize>,
    ) -> Outcome {
        make(plan, typed(kind, &[size.into()], batch.into()), bytes)
    }

    fn cufftMakePlan2d(
        plan: c_int, rows: c_int, columns: c_int, kind: c_int, bytes: Out<usize>,
    ) -> Outcome {
        make(plan, typed(kind, &[rows, columns].map(i64::from), 1), bytes)
    }

    fn cufftMakePlan3d(
        plan: c_int, x: c_int, y: c_int, z: c_int, kind: c_int, bytes: Out<usize>,
    ) -> Outcome {
        make(plan, typed(kind, &[x, y, z].map(i64::from), 1), bytes)
    }

    fn cufftMakePlanMany(
        plan: c_int, rank: c_int, sizes: In<c_int>, _input: In<c_int>, _input_stride: c_int,
        _input_distance: c_int, _output: In<c_int>, _output_stride: c_int, _output_distance: c_int,
        kind: c_int, batch: c_int, bytes: Out<usize>,
    ) -> Outcome {
        make(plan, many(kind, rank, sizes, batch), bytes)
    }

    fn cufftMakePlanMany64(
        plan: c_int, rank: c_int, sizes: In<c_longlong>, _input: In<c_longlong>,
        _input_stride: c_longlong, _input_distance: c_longlong, _output: In<c_longlong>,
        _output_stride: c_longlong, _output_distance: c_longlong, kind: c_int, batch: c_longlong,
        bytes: Out<usize>,
    ) -> Outcome {
        let rank = usize::try_from(rank).map_err(|_| CufftCode::INVALID_VALUE)?;
        make(plan, typed(kind, &sizes.get_all(rank)?, batch), bytes)
    }

    /// Makes a plan for many transforms, of any numeric types. PyTorch makes its plans in this way.
    fn cufftXtMakePlanMany(
        plan: c_int, rank: c_int, sizes: In<c_longlong>, _input: In<c_longlong>,
        _input_stride: c_longlong, _input_distance: c_longlong, input: c_int,
        _output: In<c_longlong>, _output_stride: c_longlong, _output_distance: c_longlong,
        output: c_int, batch: c_longlong, bytes: Out<usize>, _computed: c_int,
    ) -> Outcome {
        let rank = usize::try_from(rank).map_err(|_| CufftCode::INVALID_VALUE)?;
        // The types are values of `cudaDataType_t`: 0 to 2 are real, and 4 to 6 are complex.
        let kind = match (input, output) {
            (4..=6, 4..=6) => Kind::Complex,
            (0..=2, 4..=6) => Kind::FromReal,
            (4..=6, 0..=2) => Kind::ToReal,
            _ => return Err(CufftCode::INVALID_TYPE),
        };
        let scalar = [4, 8, 2][(input % 4) as usize];
        make(plan, transform(kind, scalar, &sizes.get_all(rank)?, batch), bytes)
    }
}
