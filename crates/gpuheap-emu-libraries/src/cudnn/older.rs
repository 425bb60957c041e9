//! Functions older than operation graphs. They compute convolutions and CTC loss.
//!
//! PyTorch 2.11 calls the convolution functions if `TORCH_CUDNN_V8_API_DISABLED=1` is set. An
//! algorithm is identified by its index in the list of plans that operation graphs use.

use std::ffi::{c_int, c_void};

use gpuheap_driver::export;

use super::convolution::{Convolution, Pass, Window};
use super::plans::Plan;
use super::tensor::Tensor;
use super::{CudnnCode, Handle, In, Out, Outcome};

/// Result of a search for an algorithm, laid out as `cudnnConvolutionFwdAlgoPerf_t`. The structures
/// for gradients have the same layout.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Found {
    algorithm: c_int,
    status: c_int,
    milliseconds: f32,
    workspace: usize,
    is_deterministic: c_int,
    math: c_int,
    reserved: [c_int; 3],
}

/// Exports three functions for each pass. They return the algorithms by preference, the algorithms
/// by time, and the size of an algorithm's workspace.
macro_rules! pass {
    ($($pass:ident $by_preference:ident $by_time:ident $workspace:ident;)*) => { export! {$(
        /// Writes a convolution's algorithms in cuDNN's order of preference.
        fn $by_preference(
            _handle: *const c_void,
            one: Handle<Tensor>,
            other: Handle<Tensor>,
            window: Handle<Window>,
            result: Handle<Tensor>,
            wanted: c_int,
            count: Out<c_int>,
            found: Out<Found>,
        ) -> Outcome {
            let plans = plans(Pass::$pass, [one, other, result], window)?;
            write(plans.into_iter().enumerate().collect(), wanted, count, found)
        }

        /// Writes a convolution's algorithms with workspaces of at most `bytes`, fastest first.
        fn $by_time(
            _handle: *const c_void,
            one: Handle<Tensor>,
            _one_at: *const c_void,
            other: Handle<Tensor>,
            _other_at: *const c_void,
            window: Handle<Window>,
            result: Handle<Tensor>,
            _result_at: *const c_void,
            wanted: c_int,
            count: Out<c_int>,
            found: Out<Found>,
            _workspace: *const c_void,
            bytes: usize,
        ) -> Outcome {
            let plans = plans(Pass::$pass, [one, other, result], window)?.into_iter().enumerate();
            let mut fitting: Vec<_> =
                plans.filter(|(_, plan)| plan.workspace <= bytes as u64).collect();
            fitting.sort_by_key(|(_, plan)| plan.rank);
            write(fitting, wanted, count, found)
        }

        /// Writes the size of an algorithm's workspace, in bytes.
        fn $workspace(
            _handle: *const c_void,
            one: Handle<Tensor>,
            other: Handle<Tensor>,
            window: Handle<Window>,
            result: Handle<Tensor>,
            algorithm: c_int,
            bytes: Out<usize>,
        ) -> Outcome {
            let plans = plans(Pass::$pass, [one, other, result], window)?;
            let plan = usize::try_from(algorithm).ok().and_then(|index| plans.get(index));
            bytes.write(plan.ok_or(CudnnCode::NOT_SUPPORTED)?.workspace as usize)
        }
    )*}};
}

pass! {
    Forward cudnnGetConvolutionForwardAlgorithm_v7 cudnnFindConvolutionForwardAlgorithmEx
        cudnnGetConvolutionForwardWorkspaceSize;
    Input cudnnGetConvolutionBackwardDataAlgorithm_v7 cudnnFindConvolutionBackwardDataAlgorithmEx
        cudnnGetConvolutionBackwardDataWorkspaceSize;
    Filter cudnnGetConvolutionBackwardFilterAlgorithm_v7
        cudnnFindConvolutionBackwardFilterAlgorithmEx
        cudnnGetConvolutionBackwardFilterWorkspaceSize;
}

export! {
    /// Sets the padding, stride and dilation of a convolution, each with `dimensions` numbers.
    fn cudnnSetConvolutionNdDescriptor(
        window: Handle<Window>, dimensions: c_int, padding: In<c_int>, stride: In<c_int>,
        dilation: In<c_int>,
    ) -> Outcome {
        let count = usize::try_from(dimensions).map_err(|_| CudnnCode::BAD_PARAM)?;
        let read = |list: In<c_int>| -> Result<Vec<u64>, CudnnCode> {
            let numbers = list.get_all(count)?.into_iter();
            Ok(numbers.map(|number| u64::try_from(number).unwrap_or(0)).collect())
        };
        let set =
            Window { stride: read(stride)?, padding: read(padding)?, dilation: read(dilation)? };
        window.change(|window| *window = set)
    }

    fn cudnnGetCTCLossWorkspaceSize(
        _handle: *const c_void, probabilities: Handle<Tensor>, _gradients: *const c_void,
        _labels: *const c_void, label_lengths: In<c_int>, _input_lengths: *const c_void,
        _algorithm: c_int, _settings: *const c_void, bytes: Out<usize>,
    ) -> Outcome {
        let batch = probabilities.read(|tensor| tensor.sizes.get(1).copied().unwrap_or(0))?;
        let lengths = label_lengths.get_all(usize::try_from(batch).unwrap_or(0))?;
        let most = lengths.into_iter().max().map_or(0, |most| u64::try_from(most).unwrap_or(0));
        let labels = 4 * (most + 2) * u64::try_from(batch).unwrap_or(0);
        bytes.write((probabilities.read(|tensor| ctc_loss(tensor, most))? + labels) as usize)
    }

    /// Writes the size, in bytes, of the workspace for CTC loss. The lengths of the labels are in
    /// device memory, so the function assumes the maximum length.
    fn cudnnGetCTCLossWorkspaceSize_v8(
        _handle: *const c_void, _algorithm: c_int, _settings: *const c_void,
        probabilities: Handle<Tensor>, _gradients: *const c_void, bytes: Out<usize>,
    ) -> Outcome {
        bytes.write(probabilities.read(|tensor| ctc_loss(tensor, MOST_LABELS))? as usize)
    }
}

/// Maximum number of labels in a sequence, as PyTorch sets it.
const MOST_LABELS: u64 = 255;

/// Returns the workspace of CTC loss, in bytes. It holds a probability per step, sequence and
/// class, and two values per step, sequence and state. Labels and blanks are states.
///
/// The formula matches all 32 sizes that were measured on an H200 (cuDNN 9.19, 2026-11-24). The
/// deterministic algorithm takes as much as the other algorithm.
fn ctc_loss(probabilities: &Tensor, labels: u64) -> u64 {
    let size = |index| {
        let size = probabilities.sizes.get(index).copied().unwrap_or(0);
        u64::try_from(size).unwrap_or(0)
    };
    let (steps, batch, states) = (size(0), size(1), 2 * labels + 1);
    4 * (probabilities.elements() + 2 * steps * batch * states + batch * (states + 2))
}

/// Returns the plans of a convolution. `tensors` has the two operands and the result.
fn plans(
    pass: Pass,
    tensors: [Handle<Tensor>; 3],
    window: Handle<Window>,
) -> Result<Vec<Plan>, CudnnCode> {
    let [one, other, result] = tensors.map(|tensor| tensor.read(Tensor::shape));
    let (one, other, result) = (one?, other?, result?);
    let tensors = match pass {
        Pass::Forward => [one, other, result],
        Pass::Input => [result, one, other],
        Pass::Filter => [one, result, other],
    };
    Ok(Convolution::new(pass, tensors, window.read(Window::clone)?).plans())
}

/// Writes at most `wanted` algorithms, and their number.
fn write(
    plans: Vec<(usize, Plan)>,
    wanted: c_int,
    count: Out<c_int>,
    found: Out<Found>,
) -> Outcome {
    let rows = plans.into_iter().take(usize::try_from(wanted).unwrap_or(0));
    let rows: Vec<Found> = rows
        .map(|(index, plan)| Found {
            algorithm: index as c_int,
            milliseconds: 1.0 + plan.rank as f32,
            workspace: plan.workspace as usize,
            is_deterministic: 1,
            math: c_int::from(plan.rounds),
            ..Found::default()
        })
        .collect();
    count.write(rows.len() as c_int)?;
    found.write_all(rows)
}
