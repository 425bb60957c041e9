//! Recurrent networks: sizes of workspaces and reserved memory, and addresses of weights.

use std::ffi::{c_int, c_void};

use gpuheap_driver::{CUdeviceptr, export};

use super::tensor::{Tensor, descriptors, element_bytes};
use super::{CudnnCode, Handle, Out, Outcome};

const LSTM: c_int = 2;
const GRU: c_int = 3;
/// Number of the mode for the forward pass of a training step.
const TRAINING: c_int = 1;
const BIDIRECTIONAL: c_int = 1;
/// Constant part of each layer's workspace, bytes. The other part follows from the layer's sizes.
const LAYER: u64 = 8 << 20;

/// Shape of a recurrent network.
#[derive(Default)]
struct Network {
    cell: c_int,
    directions: u64,
    data_type: c_int,
    inputs: u64,
    hidden: u64,
    /// Number of elements in a step's output: equal to `hidden`, unless the network has a
    /// projection.
    outputs: u64,
    layers: u64,
}

/// A batch of sequences: the input of a recurrent network.
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
    /// Returns the number of a layer's matrices for the input. Equally many matrices take the
    /// output of the previous step.
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

    /// Returns the number of columns of the matrices that take the input, in the layer with index
    /// `layer`.
    fn width(&self, layer: u64) -> u64 {
        if layer == 0 { self.inputs } else { self.outputs * self.directions }
    }

    /// Returns the total number of elements of a layer's matrices, in one direction.
    fn matrices(&self, layer: u64) -> u64 {
        let projection = if self.is_projected() { self.outputs * self.hidden } else { 0 };
        self.gates() * self.hidden * (self.width(layer) + self.outputs) + projection
    }

    /// Returns the total number of elements of a layer's vectors, in one direction. Each gate has
    /// two vectors.
    fn biases(&self) -> u64 {
        2 * self.gates() * self.hidden
    }

    /// Returns the number of elements of all matrices before the matrices of a layer and direction.
    /// In memory, all vectors are after all matrices.
    fn matrices_before(&self, layer: u64, direction: u64) -> u64 {
        let before: u64 = (0..layer).map(|layer| self.matrices(layer) * self.directions).sum();
        before + direction * self.matrices(layer)
    }

    fn weight_bytes(&self) -> u64 {
        let biases = self.biases() * self.directions * self.layers;
        (self.matrices_before(self.layers, 0) + biases) * element_bytes(self.data_type)
    }

    /// Returns the size of the workspace, bytes. For 1 to 3 layers of LSTM, and for inference, it
    /// is within 5 % of an H200's (cuDNN 9.19). For training a GRU or a plain network of one layer,
    /// it is too small by up to a half.
    fn workspace(&self, sequences: &Sequences) -> u64 {
        let (in_steps, in_layers) = match self.cell {
            LSTM => (5, 10),
            GRU => (4, 5),
            _ => (2, 3),
        };
        let element = element_bytes(self.data_type);
        let positions = sequences.steps * sequences.batch;
        // With several directions, the outputs are kept separately until they are joined.
        let in_steps = if self.directions > 1 { in_steps + 2 } else { in_steps };
        let states = positions * self.hidden * in_steps * self.directions;
        let inputs = positions * sequences.inputs;
        let layers = self.layers * self.directions;
        let products = in_layers * self.hidden * sequences.batch * layers;
        let matrices = self.matrices_before(self.layers, 0);
        (inputs + states + products + matrices) * element + LAYER * layers
    }

    /// Returns the size, in bytes, of the memory that stays between the passes of a training step.
    /// Without dropout, it equals an H200's.
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

// Arguments whose names begin with `_` are not read.
export! {
    /// Sets the description of a network.
    fn cudnnSetRNNDescriptor_v8(
        network: Handle<Network>,
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
        _dropout: *const c_void,
        _flags: u32,
    ) -> Outcome {
        let sizes = [inputs, hidden, outputs, layers].map(u64::try_from);
        let [Ok(inputs), Ok(hidden), Ok(outputs), Ok(layers @ 1..)] = sizes else {
            return Err(CudnnCode::BAD_PARAM);
        };
        let directions = if direction == BIDIRECTIONAL { 2 } else { 1 };
        network.change(|network| {
            *network = Network { cell, directions, data_type, inputs, hidden, outputs, layers };
        })
    }

    /// Sets the description of a batch of sequences.
    fn cudnnSetRNNDataDescriptor(
        sequences: Handle<Sequences>,
        _data_type: c_int,
        _layout: c_int,
        steps: c_int,
        batch: c_int,
        inputs: c_int,
        _lengths: *const c_int,
        _padding: *const c_void,
    ) -> Outcome {
        let [Ok(steps), Ok(batch), Ok(inputs)] = [steps, batch, inputs].map(u64::try_from) else {
            return Err(CudnnCode::BAD_PARAM);
        };
        sequences.change(|sequences| *sequences = Sequences { steps, batch, inputs })
    }

    /// Writes the size of all weights together, bytes.
    fn cudnnGetRNNWeightSpaceSize(
        _handle: *const c_void,
        network: Handle<Network>,
        bytes: Out<usize>,
    ) -> Outcome {
        bytes.write(network.read(Network::weight_bytes)? as usize)
    }

    /// Writes the sizes, in bytes, of the workspace and of the memory that stays between the
    /// passes. Either pointer may be null: PyTorch sometimes passes only one.
    fn cudnnGetRNNTempSpaceSizes(
        _handle: *const c_void,
        network: Handle<Network>,
        pass: c_int,
        sequences: Handle<Sequences>,
        workspace: Out<usize>,
        reserve: Out<usize>,
    ) -> Outcome {
        let (used, kept) = network.read(|network| {
            sequences.read(|sequences| (network.workspace(sequences), network.reserve(sequences)))
        })??;
        reserve.write_if_wanted(if pass == TRAINING { kept as usize } else { 0 })?;
        workspace.write_if_wanted(used as usize)
    }

    /// Writes the addresses and shapes of a gate's matrix and vector. In each layer and direction,
    /// an LSTM has 8 pairs of a matrix and a vector. The projection is the ninth matrix, and has no
    /// vector.
    fn cudnnGetRNNWeightParams(
        _handle: *const c_void,
        network: Handle<Network>,
        pseudo_layer: i32,
        _bytes: usize,
        weights: CUdeviceptr,
        gate: i32,
        matrix: Handle<Tensor>,
        matrix_at: Out<CUdeviceptr>,
        vector: Handle<Tensor>,
        vector_at: Out<CUdeviceptr>,
    ) -> Outcome {
        let [Ok(pseudo_layer), Ok(gate)] = [pseudo_layer, gate].map(u64::try_from) else {
            return Err(CudnnCode::BAD_PARAM);
        };
        let found = network.read(|network| network.weights(pseudo_layer, gate))?;
        let [of_matrix, of_vector] = found.ok_or(CudnnCode::BAD_PARAM)?;
        of_matrix.write(weights, matrix, matrix_at)?;
        of_vector.write(weights, vector, vector_at)
    }
}

/// A gate's matrix or vector within the weights. If `rows` is 0, the matrix or vector does not
/// exist.
struct Weights {
    data_type: c_int,
    rows: u64,
    columns: u64,
    /// Offset from the start of the weights, in elements.
    from: u64,
}

impl Network {
    /// Returns a gate's matrix and vector; `None` if the network has no such layer or gate.
    fn weights(&self, pseudo_layer: u64, gate: u64) -> Option<[Weights; 2]> {
        let (layer, direction) = (pseudo_layer / self.directions, pseudo_layer % self.directions);
        let (gates, hidden, outputs) = (self.gates(), self.hidden, self.outputs);
        if layer >= self.layers || gate > 2 * gates {
            return None;
        }
        let of_inputs = hidden * self.width(layer);
        let (rows, columns, before) = if gate < gates {
            (hidden, self.width(layer), gate * of_inputs)
        } else if gate < 2 * gates {
            (hidden, outputs, gates * of_inputs + (gate - gates) * hidden * outputs)
        } else if self.is_projected() {
            (outputs, hidden, gates * (of_inputs + hidden * outputs))
        } else {
            (0, 0, 0)
        };
        let data_type = self.data_type;
        let from = self.matrices_before(layer, direction) + before;
        let all_matrices = self.matrices_before(self.layers, 0);
        let vector_from = all_matrices + pseudo_layer * self.biases() + gate * hidden;
        let vector_rows = if gate < 2 * gates { hidden } else { 0 };
        Some([
            Weights { data_type, rows, columns, from },
            Weights { data_type, rows: vector_rows, columns: 1, from: vector_from },
        ])
    }
}

impl Weights {
    /// Writes the address to `place`, and the shape to the descriptor `tensor`. Either may be null.
    fn write(&self, all: CUdeviceptr, tensor: Handle<Tensor>, place: Out<CUdeviceptr>) -> Outcome {
        let exists = self.rows > 0;
        let address = all.wrapping_add(self.from * element_bytes(self.data_type));
        place.write_if_wanted(if exists { address } else { 0 })?;
        let [rows, columns] =
            [self.rows, self.columns].map(|size| c_int::try_from(size).unwrap_or(0));
        // Ignores the error for a null descriptor.
        let _ = tensor.change(|tensor| {
            tensor.data_type = self.data_type;
            tensor.sizes = if exists { vec![1, rows, columns] } else { Vec::new() };
            tensor.strides = if exists { vec![rows * columns, columns, 1] } else { Vec::new() };
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected figures were measured on an H200 with PyTorch 2.11 and cuDNN 9.19, for batches
    /// of 64 sequences of 200 steps.
    #[test]
    fn lstm_spaces_match_h200() {
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
    fn projected_and_bidirectional_spaces_match_h200() {
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
