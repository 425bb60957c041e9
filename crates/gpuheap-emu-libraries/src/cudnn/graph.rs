//! Operation graphs: descriptors that store their attributes, and one engine for each graph.
//!
//! From an execution plan, attributes lead step by step to the engine's configuration, the engine,
//! the graph, the graph's operations, and their tensors.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use gpuheap_driver::export;

use super::tensor::element_bytes;
use super::workspace::{ATTENTION, Convolution, Shape};
use super::{CudnnCode, Handle, In, Out, Outcome};

/// Numbers of kinds of descriptors, from `cudnnBackendDescriptorType_t`.
mod kind {
    use std::ffi::c_int;

    pub(super) const ENGINE: c_int = 2;
    pub(super) const ENGINE_CONFIG: c_int = 3;
    pub(super) const HEURISTIC: c_int = 4;
    pub(super) const PLAN: c_int = 5;
    pub(super) const CONVOLUTION: c_int = 10;
    pub(super) const CONVOLUTION_FINDS_W: c_int = 11;
    pub(super) const CONVOLUTION_FINDS_X: c_int = 12;
    pub(super) const GRAPH: c_int = 15;
    pub(super) const MATRIX_PRODUCT: c_int = 19;
    pub(super) const ATTENTION: c_int = 41;
    pub(super) const ATTENTION_BACKWARD: c_int = 43;
}

/// Numbers of attributes, from `cudnnBackendAttributeName_t`.
mod attribute {
    use std::ffi::c_int;

    pub(super) const HEURISTIC_GRAPH: c_int = 201;
    pub(super) const HEURISTIC_RESULTS: c_int = 202;
    pub(super) const CONFIG_ENGINE: c_int = 300;
    pub(super) const CONFIG_WORKSPACE: c_int = 303;
    pub(super) const CONFIG_SHARED_MEMORY: c_int = 304;
    pub(super) const PLAN_CONFIG: c_int = 401;
    pub(super) const PLAN_WORKSPACE: c_int = 402;
    pub(super) const GRAPH_OPERATIONS: c_int = 801;
    pub(super) const GRAPH_ENGINES: c_int = 802;
    pub(super) const TENSOR_TYPE: c_int = 901;
    pub(super) const TENSOR_SIZES: c_int = 902;
    pub(super) const TENSOR_STRIDES: c_int = 903;
    pub(super) const ENGINE_GRAPH: c_int = 1300;
    pub(super) const ENGINE_INDEX: c_int = 1301;
}

/// Numbers of attribute types, from `cudnnBackendAttributeType_t`.
mod of {
    use std::ffi::c_int;

    pub(super) const INT64: c_int = 3;
    pub(super) const DESCRIPTOR: c_int = 15;
}

/// Number of matrix products in the forward pass of attention. The backward pass has more.
const PRODUCTS: usize = 2;

/// Backend descriptor. Clones share their attributes.
#[derive(Clone)]
struct Descriptor {
    kind: c_int,
    attributes: Arc<Mutex<BTreeMap<c_int, Value>>>,
}

/// Value of an attribute.
#[derive(Clone)]
enum Value {
    Elements { count: usize, bytes: Vec<u8> },
    Descriptors(Vec<Descriptor>),
}

export! {
    /// Creates a descriptor of any kind.
    fn cudnnBackendCreateDescriptor(kind: c_int, made: Out<Handle<Descriptor>>) -> Outcome {
        made.require()?;
        made.write(Handle::new(Descriptor::new(kind, [])))
    }

    /// Destroys a descriptor, or does nothing for null. Descriptors that refer to the destroyed one
    /// keep its attributes.
    fn cudnnBackendDestroyDescriptor(descriptor: Handle<Descriptor>) -> Outcome {
        let _ = descriptor.end();
        Ok(())
    }

    /// Succeeds without an effect: attributes that depend on others are computed when they are
    /// read.
    fn cudnnBackendFinalize(descriptor: Handle<Descriptor>) -> Outcome {
        descriptor.read(|_| ())
    }

    /// Stores an attribute of `count` elements.
    fn cudnnBackendSetAttribute(
        descriptor: Handle<Descriptor>,
        attribute: c_int,
        of: c_int,
        count: i64,
        elements: In<c_void>,
    ) -> Outcome {
        let count = usize::try_from(count).map_err(|_| CudnnCode::BAD_PARAM)?;
        let value = Value::read(of, count, elements)?;
        descriptor.read(|descriptor| descriptor.set(attribute, value))
    }

    /// Writes at most `wanted` elements of an attribute, and the attribute's number of elements. If
    /// elements are descriptors, copies them into descriptors that the caller created and passes.
    fn cudnnBackendGetAttribute(
        descriptor: Handle<Descriptor>,
        attribute: c_int,
        of: c_int,
        wanted: i64,
        count: Out<i64>,
        elements: Out<c_void>,
    ) -> Outcome {
        let value = descriptor.read(|descriptor| descriptor.get(attribute))?;
        let held = value.as_ref().map_or(0, Value::count);
        let most = if elements.is_null() { 0 } else { usize::try_from(wanted).unwrap_or(0) };
        if let Some(value) = value {
            value.write(of, most, elements)?;
        }
        count.write_if_wanted(held as i64)
    }
}

impl Descriptor {
    fn new<const N: usize>(kind: c_int, attributes: [(c_int, Value); N]) -> Self {
        Self { kind, attributes: Arc::new(Mutex::new(BTreeMap::from(attributes))) }
    }

    fn set(&self, attribute: c_int, value: Value) {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).insert(attribute, value);
    }

    /// Returns an attribute: one that is computed, or one that the program set.
    fn get(&self, attribute: c_int) -> Option<Value> {
        match (self.kind, attribute) {
            (kind::HEURISTIC, attribute::HEURISTIC_RESULTS) => {
                let graph = self.kept(attribute::HEURISTIC_GRAPH)?;
                let engine =
                    [(attribute::ENGINE_GRAPH, graph), (attribute::ENGINE_INDEX, number(0))];
                let engine = Value::Descriptors(vec![Self::new(kind::ENGINE, engine)]);
                let config = [(attribute::CONFIG_ENGINE, engine)];
                Some(Value::Descriptors(vec![Self::new(kind::ENGINE_CONFIG, config)]))
            }
            (kind::ENGINE_CONFIG, attribute::CONFIG_WORKSPACE)
            | (kind::PLAN, attribute::PLAN_WORKSPACE) => Some(number(self.workspace())),
            (kind::ENGINE_CONFIG, attribute::CONFIG_SHARED_MEMORY) => {
                Some(Value::Elements { count: 1, bytes: 0_i32.to_ne_bytes().to_vec() })
            }
            (kind::GRAPH, attribute::GRAPH_ENGINES) => Some(number(1)),
            _ => self.kept(attribute),
        }
    }

    fn copy_from(&self, from: &Descriptor) {
        let attributes = from.attributes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        *self.attributes.lock().unwrap_or_else(PoisonError::into_inner) = attributes;
    }

    fn kept(&self, attribute: c_int) -> Option<Value> {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).get(&attribute).cloned()
    }

    fn descriptors(&self, attribute: c_int) -> Vec<Self> {
        match self.kept(attribute) {
            Some(Value::Descriptors(list)) => list,
            _ => Vec::new(),
        }
    }

    fn numbers(&self, attribute: c_int) -> Vec<i64> {
        let Some(Value::Elements { bytes, .. }) = self.kept(attribute) else { return Vec::new() };
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, i64::from_ne_bytes);
        bytes.chunks_exact(8).map(number).collect()
    }

    /// Returns the size, in bytes, of the workspace of a plan or of an engine's configuration.
    fn workspace(&self) -> u64 {
        let step = |list: Vec<Self>, attribute| -> Vec<Self> {
            list.iter().flat_map(|descriptor| descriptor.descriptors(attribute)).collect()
        };
        let engines = match self.kind {
            kind::PLAN => step(self.descriptors(attribute::PLAN_CONFIG), attribute::CONFIG_ENGINE),
            _ => self.descriptors(attribute::CONFIG_ENGINE),
        };
        let graphs = step(engines, attribute::ENGINE_GRAPH);
        let operations = step(graphs, attribute::GRAPH_OPERATIONS);
        let convolutions: u64 = operations
            .iter()
            .filter_map(|operation| operation.convolution())
            .map(|it| it.workspace())
            .sum();
        convolutions + attention_in(&operations)
    }

    /// Returns the convolution that this operation computes; `None` for other operations.
    fn convolution(&self) -> Option<Convolution> {
        // Numbers of the attributes for the filter, the input and the output.
        let [w, x, y] = match self.kind {
            kind::CONVOLUTION => [703, 704, 705],
            kind::CONVOLUTION_FINDS_X => [709, 710, 711],
            kind::CONVOLUTION_FINDS_W => [715, 716, 717],
            _ => return None,
        };
        let shape = |attribute| Some(self.descriptors(attribute).first()?.shape());
        let finds_w = self.kind == kind::CONVOLUTION_FINDS_W;
        Some(Convolution { x: shape(x)?, w: shape(w)?, y: shape(y)?, finds_w })
    }

    /// Returns the shape of a tensor descriptor.
    fn shape(&self) -> Shape {
        let sizes: Vec<u64> = self
            .numbers(attribute::TENSOR_SIZES)
            .into_iter()
            .map(|size| u64::try_from(size).unwrap_or(0))
            .collect();
        let strides = self.numbers(attribute::TENSOR_STRIDES);
        let channels_last =
            strides.get(1) == Some(&1) && sizes.get(1).is_some_and(|&size| size > 1);
        let data_type = match self.kept(attribute::TENSOR_TYPE) {
            Some(Value::Elements { bytes, .. }) => {
                bytes.as_slice().try_into().map_or(0, c_int::from_ne_bytes)
            }
            _ => 0,
        };
        Shape { element: element_bytes(data_type), sizes, channels_last }
    }
}

/// Returns the workspace of attention, in bytes, if the operations compute attention; else 0.
/// Attention is one operation, or several matrix products with other operations between them.
fn attention_in(operations: &[Descriptor]) -> u64 {
    let number_of = |kind| operations.iter().filter(|operation| operation.kind == kind).count();
    let whole = number_of(kind::ATTENTION) + number_of(kind::ATTENTION_BACKWARD) > 0;
    if whole || number_of(kind::MATRIX_PRODUCT) >= PRODUCTS { ATTENTION } else { 0 }
}

fn number(value: u64) -> Value {
    Value::Elements { count: 1, bytes: (value as i64).to_ne_bytes().to_vec() }
}

/// Returns the size, in bytes, of an element of the attribute type `of`.
fn size_of(of: c_int) -> usize {
    const HANDLE: c_int = 0;
    const BOOLEAN: c_int = 2;
    const DOUBLE: c_int = 5;
    const POINTER: c_int = 6;
    const CHAR: c_int = 24;
    const FRACTION: c_int = 26;
    match of {
        HANDLE | of::INT64 | DOUBLE | POINTER | of::DESCRIPTOR => 8,
        BOOLEAN | CHAR => 1,
        FRACTION => 16,
        _ => 4,
    }
}

impl Value {
    /// Reads `count` elements of the attribute type `of`.
    fn read(of: c_int, count: usize, elements: In<c_void>) -> Result<Self, CudnnCode> {
        if of == of::DESCRIPTOR {
            // SAFETY: the program passes an array of descriptors for an attribute of that type.
            let handles = unsafe { elements.cast::<Handle<Descriptor>>() }.get_all(count)?;
            let list = handles.into_iter().map(|handle| handle.read(Descriptor::clone));
            return Ok(Self::Descriptors(list.collect::<Result<_, _>>()?));
        }
        let length = count.checked_mul(size_of(of)).ok_or(CudnnCode::BAD_PARAM)?;
        // SAFETY: the program passes `count` elements of this size.
        let bytes = unsafe { elements.cast::<u8>() }.get_all(length)?;
        Ok(Self::Elements { count, bytes })
    }

    fn count(&self) -> usize {
        match self {
            Self::Elements { count, .. } => *count,
            Self::Descriptors(list) => list.len(),
        }
    }

    /// Writes at most `most` elements. If one of `of` and the attribute is for descriptors and the
    /// other is not, writes nothing.
    fn write(&self, of: c_int, most: usize, elements: Out<c_void>) -> Outcome {
        match self {
            Self::Elements { bytes, .. } if of != of::DESCRIPTOR => {
                let most = most.saturating_mul(size_of(of));
                // SAFETY: the program passes room for `most` elements of this size.
                unsafe { elements.cast() }.write_all(bytes.iter().copied().take(most))
            }
            Self::Descriptors(list) if of == of::DESCRIPTOR => {
                // SAFETY: the program passes an array of descriptors for an attribute of that type.
                let places = unsafe { elements.cast::<Handle<Descriptor>>() };
                for (index, from) in list.iter().take(most).enumerate() {
                    // Ignores null descriptors.
                    let _ = places.at(index).get()?.read(|to| to.copy_from(from));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
