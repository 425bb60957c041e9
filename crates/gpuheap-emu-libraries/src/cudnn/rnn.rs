//! Recurrent networks: the spaces that they ask for, and where the weights lie.

use std::ffi::{c_int, c_void};

use super::tensor::{Tensor, descriptors, element_bytes};
use super::{BAD_PARAM, SUCCESS, put};

const LSTM: c_int = 2;
const GRU: c_int = 3;
/// Forward pass of a training step.
const TRAINING: c_int = 1;
const BIDIRECTIONAL: c_int = 1;
/// Bytes that each layer's workspace takes beside what its sizes give.
const LAYER: u64 = 8 << 20;

/// Shape of a network.
#[derive(Default)]
struct Network {
    cell: c_int,
    directions: u64,
    data_type: c_int,
    inputs: u64,
    hidden: u64,
    /// Elements that a step gives: as many as are hidden, unless they are projected.
    outputs: u64,
    layers: u64,
}

/// Batch of sequences.
#[derive(Default)]
struct Sequences {
    steps: u64,
    batch: u64,
    inputs: u64,
}

descriptors! {
    Network: cudnnCreateRNNDescriptor, cudnnDestroyRNNDescriptor;
    Sequences: cudnnCreateRNNDataDescriptor, cudnnDestroyRNNDataDescriptor;
}

impl Network {
    /// Matrices of a layer that take its input, and as many that take what the step before gave.
    fn gates(&self) -> u64 {
        match self.cell {
            LSTM => 4,
            GRU => 3,
            _ => 1,
        }
    }

    fn is_projected(&self) -> bool {
        self.outputs != self.hidden
    }

    /// Columns of the matrices that take the input, in the layer of that number.
    fn width(&self, layer: u64) -> u64 {
        if layer == 0 { self.inputs } else { self.outputs * self.directions }
    }

    /// Elements of a layer's matrices, in one direction.
    fn matrices(&self, layer: u64) -> u64 {
        let projection = if self.is_projected() { self.outputs * self.hidden } else { 0 };
        self.gates() * self.hidden * (self.width(layer) + self.outputs) + projection
    }

    /// Elements of a layer's vectors, in one direction: two for each gate.
    fn biases(&self) -> u64 {
        2 * self.gates() * self.hidden
    }

    /// Elements of the matrices before a layer and direction. All vectors come after all matrices.
    fn matrices_before(&self, layer: u64, direction: u64) -> u64 {
        let before: u64 = (0..layer).map(|layer| self.matrices(layer) * self.directions).sum();
        before + direction * self.matrices(layer)
    }

    fn weight_bytes(&self) -> u64 {
        let biases = self.biases() * self.directions * self.layers;
        (self.matrices_before(self.layers, 0) + biases) * element_bytes(self.data_type)
    }

    /// Bytes of the workspace: equal to an H200's, or within 5 % of it, for 1 to 3 layers of LSTM
    /// and networks that only infer (cuDNN 9.19); less than it by up to a half for a GRU and a
    /// plain network of one layer that train.
    fn workspace(&self, sequences: &Sequences) -> u64 {
        let (in_steps, in_layers) = match self.cell {
            LSTM => (5, 10),
            GRU => (4, 5),
            _ => (2, 3),
        };
        let element = element_bytes(self.data_type);
        let positions = sequences.steps * sequences.batch;
        // The outputs of several directions are kept beside until they are joined.
        let in_steps = if self.directions > 1 { in_steps + 2 } else { in_steps };
        let states = positions * self.hidden * in_steps * self.directions;
        let inputs = positions * sequences.inputs;
        let layers = self.layers * self.directions;
        let products = in_layers * self.hidden * sequences.batch * layers;
        let matrices = self.matrices_before(self.layers, 0);
        (inputs + states + products + matrices) * element + LAYER * layers
    }

    /// Bytes that stay between the passes of a training step: equal to an H200's without dropout.
    fn reserve(&self, sequences: &Sequences) -> u64 {
        let kept = match self.cell {
            LSTM => 5,
            GRU => 6,
            _ => 1,
        };
        let state = if self.is_projected() { self.hidden + self.outputs } else { self.hidden };
        let positions = sequences.steps * sequences.batch;
        let between = (self.layers - 1) * self.outputs;
        let elements = positions * self.directions * (kept * state * self.layers + between);
        elements * element_bytes(self.data_type) + 256
    }
}

/// Describes a network.
///
/// # Safety
///
/// `network` is null or live, and not used by another thread.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnSetRNNDescriptor_v8(
    network: *mut c_void,
    _algorithm: c_int,
    cell: c_int,
    _bias: c_int,
    direction: c_int,
    _input: c_int,
    data_type: c_int,
    _precision: c_int,
    _math: c_int,
    inputs: i32,
    hidden: i32,
    outputs: i32,
    layers: i32,
    _dropout: *mut c_void,
    _flags: u32,
) -> c_int {
    // SAFETY: the caller promises a descriptor that is null or live, and no other user of it.
    let Some(network) = (unsafe { network.cast::<Network>().as_mut() }) else { return BAD_PARAM };
    let sizes = [inputs, hidden, outputs, layers].map(u64::try_from);
    let [Ok(inputs), Ok(hidden), Ok(outputs), Ok(layers @ 1..)] = sizes else { return BAD_PARAM };
    let directions = if direction == BIDIRECTIONAL { 2 } else { 1 };
    *network = Network { cell, directions, data_type, inputs, hidden, outputs, layers };
    SUCCESS
}

/// Describes a batch of sequences.
///
/// # Safety
///
/// `sequences` is null or live, and not used by another thread.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnSetRNNDataDescriptor(
    sequences: *mut c_void,
    _data_type: c_int,
    _layout: c_int,
    steps: c_int,
    batch: c_int,
    inputs: c_int,
    _lengths: *const c_int,
    _padding: *mut c_void,
) -> c_int {
    // SAFETY: the caller promises a descriptor that is null or live, and no other user of it.
    let Some(to) = (unsafe { sequences.cast::<Sequences>().as_mut() }) else { return BAD_PARAM };
    let [Ok(steps), Ok(batch), Ok(inputs)] = [steps, batch, inputs].map(u64::try_from) else {
        return BAD_PARAM;
    };
    *to = Sequences { steps, batch, inputs };
    SUCCESS
}

/// Writes the bytes of all weights.
///
/// # Safety
///
/// `network` is null or live. `bytes` is null or valid for a write.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetRNNWeightSpaceSize(
    _handle: *mut c_void,
    network: *const c_void,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the caller promises a descriptor that is null or live.
    let Some(network) = (unsafe { network.cast::<Network>().as_ref() }) else { return BAD_PARAM };
    // SAFETY: the caller promises the pointer.
    unsafe { put(bytes, network.weight_bytes() as usize) }
}

/// Writes the bytes of the workspace, and of what stays between the passes.
///
/// # Safety
///
/// `network` and `sequences` are null or live. The other pointers are null or valid for a write.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetRNNTempSpaceSizes(
    _handle: *mut c_void,
    network: *const c_void,
    pass: c_int,
    sequences: *const c_void,
    workspace: *mut usize,
    reserve: *mut usize,
) -> c_int {
    // SAFETY: the caller promises descriptors that are null or live.
    let found =
        unsafe { (network.cast::<Network>().as_ref(), sequences.cast::<Sequences>().as_ref()) };
    let (Some(network), Some(sequences)) = found else { return BAD_PARAM };
    let kept = if pass == TRAINING { network.reserve(sequences) } else { 0 };
    // SAFETY: the caller promises the pointers.
    unsafe {
        // PyTorch asks for one of them at times.
        put(reserve, kept as usize);
        put(workspace, network.workspace(sequences) as usize);
    }
    SUCCESS
}

/// Writes where a gate's matrix and vector lie, and their shapes. An LSTM has 8 of them in a layer
/// and direction, and its projection as the ninth, without a vector.
///
/// # Safety
///
/// `network` is null or live. The two tensors are null or live, and not used by another thread. The
/// two places are null or valid for a write. The weights are not read.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetRNNWeightParams(
    _handle: *mut c_void,
    network: *const c_void,
    pseudo_layer: i32,
    _bytes: usize,
    weights: *const c_void,
    gate: i32,
    matrix: *mut c_void,
    matrix_at: *mut *mut c_void,
    vector: *mut c_void,
    vector_at: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller promises a descriptor that is null or live.
    let Some(network) = (unsafe { network.cast::<Network>().as_ref() }) else { return BAD_PARAM };
    let [Ok(pseudo_layer), Ok(gate)] = [pseudo_layer, gate].map(u64::try_from) else {
        return BAD_PARAM;
    };
    let (layer, direction) = (pseudo_layer / network.directions, pseudo_layer % network.directions);
    if layer >= network.layers || gate > 2 * network.gates() {
        return BAD_PARAM;
    }
    let (gates, hidden, outputs) = (network.gates(), network.hidden, network.outputs);
    let of_inputs = hidden * network.width(layer);
    let (rows, columns, before) = if gate < gates {
        (hidden, network.width(layer), gate * of_inputs)
    } else if gate < 2 * gates {
        (hidden, outputs, gates * of_inputs + (gate - gates) * hidden * outputs)
    } else if network.is_projected() {
        (outputs, hidden, gates * (of_inputs + hidden * outputs))
    } else {
        (0, 0, 0)
    };
    let element = element_bytes(network.data_type) as usize;
    let all_matrices = network.matrices_before(network.layers, 0);
    let matrix_from = network.matrices_before(layer, direction) + before;
    let vector_from = all_matrices + pseudo_layer * network.biases() + gate * hidden;
    let at = |elements: u64| weights.cast::<u8>().wrapping_add(elements as usize * element);
    let vector_rows = if gate < 2 * gates { hidden } else { 0 };
    // SAFETY: the caller promises descriptors and places.
    unsafe {
        give(matrix, matrix_at, network.data_type, [rows, columns], at(matrix_from));
        give(vector, vector_at, network.data_type, [vector_rows, 1], at(vector_from));
    }
    SUCCESS
}

/// # Safety
///
/// `tensor` is null or live, and not used by another thread. `place` is null or valid for a write.
unsafe fn give(
    tensor: *mut c_void,
    place: *mut *mut c_void,
    data_type: c_int,
    [rows, columns]: [u64; 2],
    at: *const u8,
) {
    let nothing = rows == 0;
    let at = if nothing { std::ptr::null_mut() } else { at.cast_mut().cast() };
    // SAFETY: the caller promises a place that is null or valid.
    unsafe { put(place, at) };
    // SAFETY: the caller promises a descriptor that is null or live, and no other user of it.
    let Some(tensor) = (unsafe { tensor.cast::<Tensor>().as_mut() }) else { return };
    let [rows, columns] = [rows, columns].map(|size| c_int::try_from(size).unwrap_or(0));
    tensor.data_type = data_type;
    tensor.sizes = if nothing { Vec::new() } else { vec![1, rows, columns] };
    tensor.strides = if nothing { Vec::new() } else { vec![rows * columns, columns, 1] };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measured on an H200 with PyTorch 2.11 and cuDNN 9.19: batches of 64 sequences of 200 steps.
    #[test]
    fn lstm_of_three_layers_takes_what_a_gpu_took() {
        let network = Network {
            cell: LSTM,
            directions: 1,
            data_type: 0,
            inputs: 512,
            hidden: 1024,
            outputs: 1024,
            layers: 3,
        };
        let sequences = Sequences { steps: 200, batch: 64, inputs: 512 };
        assert_eq!(network.weight_bytes(), 92_372_992);
        assert_eq!(network.reserve(&sequences), 891_289_856);
        let workspace = network.workspace(&sequences);
        assert!(workspace.abs_diff(413_664_000) < 1 << 20, "{workspace}");
    }

    #[test]
    fn projected_and_bidirectional_networks_take_what_a_gpu_took() {
        let projected = Network {
            cell: LSTM,
            directions: 1,
            data_type: 0,
            inputs: 300,
            hidden: 512,
            outputs: 128,
            layers: 1,
        };
        assert_eq!(projected.weight_bytes(), 3_784_704);
        let sequences = Sequences { steps: 50, batch: 8, inputs: 300 };
        assert_eq!(projected.reserve(&sequences), 5_120_256);
        let both = Network { directions: 2, inputs: 512, outputs: 512, layers: 2, ..projected };
        assert_eq!(both.weight_bytes(), 42_008_576);
        let sequences = Sequences { steps: 200, batch: 64, inputs: 512 };
        assert_eq!(both.reserve(&sequences), 576_717_056);
        let workspace = both.workspace(&sequences);
        assert!(workspace.abs_diff(475_005_696) < 8 << 20, "{workspace}");
    }
}
