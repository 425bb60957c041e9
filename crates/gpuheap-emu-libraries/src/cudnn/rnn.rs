//! Recurrent networks: sizes of workspaces and of reserved memory, and addresses of weights.

use std::ffi::{c_int, c_void};

use gpuheap_driver::{CUdeviceptr, export};

use super::tensor::{Dropout, Tensor, descriptors, element_bytes};
use super::{CudnnCode, Handle, In, Out, Outcome};

const LSTM: c_int = 2;
const GRU: c_int = 3;
/// Mode for the forward pass of a training step.
const TRAINING: c_int = 1;
const BIDIRECTIONAL: c_int = 1;
/// Algorithm that computes each step separately. The other algorithms are persistent: they keep the
/// matrices on the multiprocessors.
const STANDARD: c_int = 0;
/// Layout in which sequences have no padding.
const PACKED: c_int = 1;
/// Values of `cudnnDataType_t` (float and half) for which persistent algorithms need larger
/// workspaces than `STANDARD`. For `bfloat16`, the workspaces are equal.
const PERSISTENT_TYPES: [c_int; 2] = [0, 2];
/// Constant part of each layer's workspace, in bytes. The rest follows from the layer's sizes.
const LAYER: u128 = 8 << 20;
/// Maximum width of a layer, and maximum number of layers. Within these limits, the sizes of the
/// weights do not overflow. No larger network fits a device.
const LARGEST: u64 = 1 << 20;
const MOST_LAYERS: u64 = 1 << 10;
/// Maximum number of time steps for which the forward pass computes the cells' gates at once.
const STEPS_AT_ONCE: u128 = 256;

/// Shape of a recurrent network.
#[derive(Default)]
struct Network {
    cell: c_int,
    directions: u64,
    data_type: c_int,
    inputs: u64,
    hidden: u64,
    /// Number of elements in a step's output. Equals `hidden` if the network has no projection.
    outputs: u64,
    layers: u64,
    algorithm: c_int,
    has_dropout: bool,
}

/// Batch of sequences that is the input of a recurrent network.
#[derive(Default)]
struct Sequences {
    /// Number of steps of the longest sequence.
    steps: u64,
    batch: u64,
    inputs: u64,
    is_packed: bool,
    /// Total number of steps of all sequences, including padding unless they are packed.
    positions: u64,
}

/// Numbers of vectors in the workspace that a cell needs for each sequence, layer and direction.
struct Cell {
    forward: u128,
    backward: u128,
    /// Number of state vectors of a cell (2 in an LSTM). They are copied if sequences are padded.
    copies: u128,
    persistent_forward: u128,
    persistent_backward: u128,
    /// Number of vectors that a persistent algorithm's backward pass adds for each time step.
    persistent_steps: u128,
}

const LSTM_CELL: Cell = Cell {
    forward: 6,
    backward: 3,
    copies: 2,
    persistent_forward: 8,
    persistent_backward: 12,
    persistent_steps: 12,
};
const GRU_CELL: Cell = Cell {
    forward: 3,
    backward: 1,
    copies: 1,
    persistent_forward: 4,
    persistent_backward: 6,
    persistent_steps: 14,
};
const PLAIN_CELL: Cell = Cell { forward: 1, persistent_steps: 9, ..GRU_CELL };

descriptors! {
    Network: cudnnCreateRNNDescriptor, cudnnDestroyRNNDescriptor;
    Sequences: cudnnCreateRNNDataDescriptor, cudnnDestroyRNNDataDescriptor;
}

impl Network {
    /// Returns the number of a layer's input matrices. There are as many recurrent matrices.
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

    /// Returns the number of columns in the input matrices of layer `layer`.
    fn width(&self, layer: u64) -> u64 {
        if layer == 0 { self.inputs } else { self.outputs * self.directions }
    }

    /// Returns the total number of elements in a layer's matrices, in one direction.
    fn matrices(&self, layer: u64) -> u64 {
        let projection = if self.is_projected() { self.outputs * self.hidden } else { 0 };
        self.gates() * self.hidden * (self.width(layer) + self.outputs) + projection
    }

    /// Returns the total number of elements in a layer's bias vectors, in one direction. Each gate
    /// has two vectors.
    fn biases(&self) -> u64 {
        2 * self.gates() * self.hidden
    }

    /// Returns the number of matrix elements before the matrices of a layer and direction. In
    /// memory, all vectors follow all matrices.
    fn matrices_before(&self, layer: u64, direction: u64) -> u64 {
        let before: u64 = (0..layer).map(|layer| self.matrices(layer) * self.directions).sum();
        before + direction * self.matrices(layer)
    }

    fn weight_bytes(&self) -> u64 {
        let biases = self.biases() * self.directions * self.layers;
        (self.matrices_before(self.layers, 0) + biases) * element_bytes(self.data_type)
    }

    /// Returns the size of the workspace, in bytes.
    ///
    /// The formulas match 121,000 of 122,000 networks within 0.1 % (an H200, cuDNN 9.19,
    /// 2026-11-24). The remaining networks with a persistent algorithm need up to 3 MB more in the
    /// backward pass than the formula returns.
    fn workspace(&self, sequences: &Sequences, is_training: bool) -> u64 {
        let sizes = Sizes::new(self, sequences);
        let is_persistent =
            self.algorithm != STANDARD && PERSISTENT_TYPES.contains(&self.data_type);
        let (forward, backward) = if is_persistent {
            (sizes.persistent_forward(), sizes.persistent_backward())
        } else {
            (sizes.forward(), sizes.backward())
        };
        let elements = if is_training { forward.max(backward) } else { forward };
        let matrices = u128::from(self.matrices_before(self.layers, 0));
        let padding = if sequences.is_packed { 0 } else { 8 * sizes.batch };
        let bytes = (elements + matrices) * u128::from(element_bytes(self.data_type));
        clamped(bytes + LAYER * sizes.layers * sizes.directions + padding + 256)
    }

    /// Returns the size of the memory kept between the passes of a training step, in bytes.
    fn reserve(&self, sequences: &Sequences) -> u64 {
        let sizes = Sizes::new(self, sequences);
        let Sizes { hidden, outputs, layers, directions, .. } = sizes;
        let of_layer = match self.cell {
            LSTM if self.is_projected() => 6 * hidden + outputs,
            LSTM => 5 * hidden,
            GRU => 6 * hidden,
            _ => hidden,
        };
        let between = (layers - 1) * hidden;
        let elements = sizes.positions * directions * (of_layer * layers + between);
        // One bit for each output that may be dropped.
        let dropped = if self.has_dropout {
            sizes.steps * sizes.batch * outputs * directions.pow(2) * (layers - 1) / 8
        } else {
            0
        };
        clamped(elements * u128::from(element_bytes(self.data_type)) + dropped + 256)
    }
}

/// Returns `bytes`, or `u64::MAX` if `bytes` is larger.
fn clamped(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Sizes of a network and its sequences, as `u128`, so that products do not overflow. Most
/// functions return the size, in elements, of a part of the workspace. No part includes weight
/// matrices.
struct Sizes {
    cell: Cell,
    gates: u128,
    directions: u128,
    layers: u128,
    inputs: u128,
    hidden: u128,
    outputs: u128,
    steps: u128,
    batch: u128,
    positions: u128,
    is_packed: bool,
    is_projected: bool,
    has_dropout: bool,
}

impl Sizes {
    fn new(network: &Network, sequences: &Sequences) -> Self {
        Self {
            cell: match network.cell {
                LSTM => LSTM_CELL,
                GRU => GRU_CELL,
                _ => PLAIN_CELL,
            },
            gates: network.gates().into(),
            directions: network.directions.into(),
            layers: network.layers.into(),
            inputs: sequences.inputs.into(),
            hidden: network.hidden.into(),
            outputs: network.outputs.into(),
            steps: sequences.steps.into(),
            batch: sequences.batch.into(),
            positions: sequences.positions.into(),
            is_packed: sequences.is_packed,
            is_projected: network.is_projected(),
            has_dropout: network.has_dropout,
        }
    }

    fn has_two_directions(&self) -> bool {
        self.directions > 1
    }

    /// Returns the size of the vectors for all sequences, layers and directions. Each combination
    /// has `vectors` vectors, or `vectors + more` if the network has two directions.
    fn states(&self, vectors: u128, more: u128) -> u128 {
        let vectors = vectors + if self.has_two_directions() { more } else { 0 };
        vectors * self.batch * self.hidden * self.layers * self.directions
    }

    /// Returns the size of the unpadded copies of inputs, outputs and states.
    fn copies(&self) -> u128 {
        if self.is_packed {
            return 0;
        }
        let states = self.cell.copies * (self.hidden + self.outputs) * self.layers;
        self.positions * (self.inputs + self.outputs * self.directions)
            + states * self.batch * self.directions
    }

    /// Returns the size of the hidden states before a projection to outputs; 0 without projection.
    fn projected(&self) -> u128 {
        if self.is_projected { self.positions * self.hidden * self.directions } else { 0 }
    }

    fn dropped(&self) -> u128 {
        let is_kept = self.has_dropout && !self.has_two_directions();
        if is_kept { self.positions * self.hidden } else { 0 }
    }

    fn forward(&self) -> u128 {
        let gates = if self.has_two_directions() {
            (self.gates + 2) * self.positions * self.directions
        } else {
            self.gates * self.positions.min(STEPS_AT_ONCE * self.batch)
        };
        gates * self.hidden
            + self.states(self.cell.forward, 2)
            + self.projected()
            + self.copies()
            + self.dropped()
    }

    fn backward(&self) -> u128 {
        let widest = self.hidden.max(self.inputs);
        let steps = if self.has_two_directions() {
            let hidden = if self.layers > 1 { 4 * self.hidden } else { 2 * self.hidden };
            self.positions * (4 * widest + hidden)
        } else {
            self.positions * widest + self.positions_at_once() * self.hidden
        };
        steps + self.states(self.cell.backward, 2) + self.projected() + 2 * self.copies()
    }

    /// Returns the number of positions (time steps of all sequences) on which the backward pass
    /// works at once. Layers work on different steps at the same time.
    fn positions_at_once(&self) -> u128 {
        if self.layers == 1 {
            return self.positions;
        }
        let steps = match (self.steps, self.batch) {
            (64.., 1) => 32,
            (_, ..=8) => 16,
            (128.., _) | (_, ..=16) => 8,
            (_, ..=96) => 4,
            _ => 2,
        };
        self.positions.min((steps * self.layers + steps.max(8)) * self.batch)
    }

    fn persistent_forward(&self) -> u128 {
        let of_step = if self.has_two_directions() {
            (self.gates + 3) * self.directions
        } else {
            self.gates + 1
        };
        self.positions * (self.inputs + (of_step + 4 * self.gates) * self.hidden)
            + self.states(self.cell.persistent_forward, 1)
            + self.dropped()
    }

    fn persistent_backward(&self) -> u128 {
        let widest = self.hidden.max(self.inputs);
        let widest = if self.has_two_directions() { 4 * widest } else { widest };
        let of_layers = if self.layers > 1 { 4 } else { 3 };
        let of_step = self.directions * of_layers + self.cell.persistent_steps;
        self.positions * (2 * self.inputs + widest + of_step * self.hidden)
            + self.states(self.cell.persistent_backward, 1)
    }
}

// Arguments whose names begin with `_` are not read.
export! {
    fn cudnnSetRNNDescriptor_v8(
        network: Handle<Network>, algorithm: c_int, cell: c_int, _bias: c_int, direction: c_int,
        _input: c_int, data_type: c_int, _precision: c_int, _math: c_int, inputs: i32, hidden: i32,
        outputs: i32, layers: i32, dropout: Handle<Dropout>, _flags: u32,
    ) -> Outcome {
        let sizes = [inputs, hidden, outputs, layers].map(u64::try_from);
        let [Ok(inputs), Ok(hidden), Ok(outputs), Ok(layers @ 1..)] = sizes else {
            return Err(CudnnCode::BAD_PARAM);
        };
        if inputs.max(hidden).max(outputs) > LARGEST || layers > MOST_LAYERS {
            return Err(CudnnCode::BAD_PARAM);
        }
        let directions = if direction == BIDIRECTIONAL { 2 } else { 1 };
        // PyTorch passes no dropout descriptor if it only computes the sizes of weights.
        let has_dropout = dropout.read(|dropout| dropout.rate > 0.0).unwrap_or(false);
        network.change(|network| {
            *network = Network {
                cell,
                directions,
                data_type,
                inputs,
                hidden,
                outputs,
                layers,
                algorithm,
                has_dropout,
            };
        })
    }

    fn cudnnSetRNNDataDescriptor(
        sequences: Handle<Sequences>, _data_type: c_int, layout: c_int, steps: c_int, batch: c_int,
        inputs: c_int, lengths: In<c_int>, _padding: *const c_void,
    ) -> Outcome {
        let [Ok(steps), Ok(batch), Ok(inputs)] = [steps, batch, inputs].map(u64::try_from) else {
            return Err(CudnnCode::BAD_PARAM);
        };
        let is_packed = layout == PACKED;
        let positions = if is_packed {
            let lengths = lengths.get_all(usize::try_from(batch).unwrap_or(0))?.into_iter();
            lengths.map(|length| u64::try_from(length).unwrap_or(0)).sum()
        } else {
            steps * batch
        };
        sequences.change(|sequences| {
            *sequences = Sequences { steps, batch, inputs, is_packed, positions };
        })
    }

    fn cudnnGetRNNWeightSpaceSize(
        _handle: *const c_void, network: Handle<Network>, bytes: Out<usize>,
    ) -> Outcome {
        bytes.write(network.read(Network::weight_bytes)? as usize)
    }

    /// Writes the sizes, in bytes, of the workspace and of the memory kept between the passes.
    /// Either pointer may be null, because PyTorch sometimes passes only one pointer.
    fn cudnnGetRNNTempSpaceSizes(
        _handle: *const c_void, network: Handle<Network>, pass: c_int, sequences: Handle<Sequences>,
        workspace: Out<usize>, reserve: Out<usize>,
    ) -> Outcome {
        let (used, kept) = network.read(|network| {
            sequences.read(|sequences| {
                (network.workspace(sequences, pass == TRAINING), network.reserve(sequences))
            })
        })??;
        reserve.write_if_wanted(if pass == TRAINING { kept as usize } else { 0 })?;
        workspace.write_if_wanted(used as usize)
    }

    /// Writes the addresses and shapes of a gate's matrix and vector. In each layer and direction,
    /// an LSTM has 8 pairs of a matrix and a vector. The projection is the ninth matrix, and has no
    /// vector.
    fn cudnnGetRNNWeightParams(
        _handle: *const c_void, network: Handle<Network>, pseudo_layer: i32, _bytes: usize,
        weights: CUdeviceptr, gate: i32, matrix: Handle<Tensor>, matrix_at: Out<CUdeviceptr>,
        vector: Handle<Tensor>, vector_at: Out<CUdeviceptr>,
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

/// A gate's matrix or vector within the weights. It does not exist if `rows` is 0.
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
    /// Writes the address of these weights to `place`, and their shape to `tensor`. Both may be
    /// null. `all` is the address of all weights of the network.
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

    /// Describes a network and its sequences. The elements are the codes of the cell, the algorithm
    /// and the type; the numbers of directions, layers, inputs, hidden elements, outputs, sequences
    /// and steps; the number of positions, or 0 if the sequences are padded; and 1 with dropout,
    /// else 0.
    type Shape = [u32; 12];

    fn described(shape: Shape) -> (Network, Sequences) {
        let [cell, algorithm, data_type] = [shape[0], shape[1], shape[2]].map(|it| it as c_int);
        let [directions, layers, inputs, hidden, outputs, batch, steps, packed, dropout] =
            [3, 4, 5, 6, 7, 8, 9, 10, 11].map(|at| u64::from(shape[at]));
        let has_dropout = dropout == 1;
        let is_packed = packed > 0;
        let positions = if is_packed { packed } else { batch * steps };
        (
            Network {
                cell,
                directions,
                data_type,
                inputs,
                hidden,
                outputs,
                layers,
                algorithm,
                has_dropout,
            },
            Sequences { steps, batch, inputs, is_packed, positions },
        )
    }

    /// Compares sizes with an H200's (cuDNN 9.19): weights, workspaces for inference and training,
    /// and the memory kept between passes.
    #[test]
    fn spaces_match_h200() {
        let measured = [
            (
                [2, 3, 0, 1, 1, 28, 64, 64, 64, 28, 0, 0],
                [96_256, 18_449_152, 18_449_152, 2_294_016],
            ),
            (
                [2, 0, 0, 1, 2, 128, 256, 256, 32, 500, 0, 0],
                [3_686_400, 79_233_536, 87_491_072, 180_224_256],
            ),
            (
                [3, 0, 2, 1, 3, 245, 1410, 1410, 40, 20, 0, 1],
                [61_766_460, 100_246_112, 100_246_112, 45_402_304],
            ),
            (
                [1, 0, 0, 1, 2, 512, 50, 50, 64, 35, 0, 0],
                [133_200, 22_470_720, 31_901_760, 1_344_256],
            ),
            (
                [2, 0, 9, 2, 3, 580, 768, 768, 505, 85, 0, 1],
                [73_261_056, 1_152_224_480, 1_152_224_480, 2_274_681_856],
            ),
            (
                [3, 0, 0, 2, 2, 1029, 114, 114, 80, 7, 323, 0],
                [4_073_904, 39_820_160, 43_962_464, 3_829_760],
            ),
            (
                [2, 0, 0, 1, 2, 888, 1500, 1500, 80, 589, 23_815, 1],
                [129_408_000, 786_259_488, 786_259_488, 1_580_625_280],
            ),
            (
                [0, 0, 1, 2, 1, 688, 768, 768, 544, 64, 17_696, 0],
                [17_915_904, 707_068_160, 707_068_160, 217_448_704],
            ),
            (
                [3, 3, 2, 2, 2, 64, 64, 64, 20, 16, 0, 0],
                [248_832, 34_875_808, 35_019_168, 1_065_216],
            ),
            (
                [1, 3, 0, 1, 2, 64, 150, 150, 20, 35, 0, 0],
                [310_800, 19_881_248, 23_468_448, 1_260_256],
            ),
            ([2, 3, 9, 1, 1, 64, 64, 64, 8, 35, 0, 0], [66_560, 8_679_744, 8_680_768, 179_456]),
            (
                [2, 1, 2, 1, 1, 512, 512, 512, 64, 100, 0, 0],
                [4_202_496, 157_287_168, 157_287_168, 32_768_256],
            ),
            (
                [2, 0, 0, 1, 2, 200, 826, 98, 69, 20, 0, 1],
                [7_229_152, 56_712_288, 56_712_288, 60_372_864],
            ),
            (
                [2, 0, 0, 2, 1, 128, 256, 128, 32, 50, 1600, 0],
                [2_375_680, 42_598_656, 42_598_656, 21_299_456],
            ),
        ];
        for (shape, sizes) in measured {
            let (network, sequences) = described(shape);
            assert_eq!(network.weight_bytes(), sizes[0], "{shape:?}");
            let found = [
                network.workspace(&sequences, false),
                network.workspace(&sequences, true),
                network.reserve(&sequences),
            ];
            for (found, expected) in found.into_iter().zip(&sizes[1..]) {
                let near = (expected / 2000).max(1024);
                assert!(found.abs_diff(*expected) <= near, "{shape:?}: {found}, not {expected}");
            }
        }
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let (wide, long) = (LARGEST as u32, i32::MAX as u32);
        let shape = [2, 0, 1, 2, MOST_LAYERS as u32, wide, wide, wide, long, long, 0, 1];
        let (network, sequences) = described(shape);
        assert_eq!(network.workspace(&sequences, true), u64::MAX);
        assert_eq!(network.reserve(&sequences), u64::MAX);
    }
}
