//! Implements operation graphs. Each object of a graph is a descriptor that stores attributes.
//!
//! Attributes link the descriptors in a chain: execution plan, engine configuration, engine, graph,
//! operations, tensors. Engine number `i` of a graph stands for plan number `i` of the graph's
//! convolution. A graph without a convolution has one engine.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gpuheap_driver::export;

use super::convolution::{Convolution, Pass, Shape, Window};
use super::plans::Plan;
use super::tensor::element_bytes;
use super::{CudnnCode, CudnnSession, Handle, In, Out, Outcome};
use crate::device::{self, Loaded};
use crate::{report, workspaces};

/// Kinds of descriptors: values of `cudnnBackendDescriptorType_t`.
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

/// Attributes: values of `cudnnBackendAttributeName_t`.
mod attribute {
    use std::ffi::c_int;

    pub(super) const WINDOW_DILATION: c_int = 102;
    pub(super) const WINDOW_STRIDE: c_int = 103;
    pub(super) const WINDOW_PADDING: c_int = 104;
    pub(super) const HEURISTIC_MODE: c_int = 200;
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
    pub(super) const PACK_WORKSPACE: c_int = 1003;
    pub(super) const ENGINE_INDEX: c_int = 1301;
    pub(super) const ENGINE_NOTES: c_int = 1303;
}

/// Types of attributes: values of `cudnnBackendAttributeType_t`.
mod of {
    use std::ffi::c_int;

    pub(super) const INT64: c_int = 3;
    pub(super) const DESCRIPTOR: c_int = 15;
}

/// Heuristic mode that returns the engines that support every graph.
const FALLBACK: c_int = 2;
/// Note that an engine uses tensor cores.
const TENSOR_CORE: c_int = 0;
/// Index of the engine that supports every graph and needs no workspace.
const LAST_ENGINE: u64 = 1 << 20;

/// Workspace of attention in each pass, in bytes. It excludes the gradient of the queries, because
/// PyTorch allocates that gradient itself.
const ATTENTION: u64 = 256;

/// Data type of half precision.
const HALF: c_int = 2;

/// Number of matrix products in the forward pass of attention. The backward pass has more.
const PRODUCTS: usize = 2;

/// Backend descriptor. Clones share their attributes.
#[derive(Clone)]
struct Descriptor {
    kind: c_int,
    attributes: Arc<Mutex<BTreeMap<c_int, Value>>>,
    /// Number of times that a plan was executed.
    executions: Arc<AtomicU32>,
}

/// Value of an attribute.
#[derive(Clone)]
enum Value {
    Elements { count: usize, bytes: Vec<u8> },
    Descriptors(Vec<Descriptor>),
}

export! {
    fn cudnnBackendCreateDescriptor(kind: c_int, made: Out<Handle<Descriptor>>) -> Outcome {
        made.require()?;
        made.write(Handle::new(Descriptor::new(kind, [])))
    }

    /// Destroys a descriptor; ignores null. Descriptors that refer to the destroyed descriptor keep
    /// its attributes.
    fn cudnnBackendDestroyDescriptor(descriptor: Handle<Descriptor>) -> Outcome {
        let _ = descriptor.end();
        Ok(())
    }

    /// Enqueues empty kernels on the handle's stream, in place of the plan's computation.
    ///
    /// PyTorch's benchmark mode executes each plan twice, and times the second execution. On the
    /// emulated device, all kernels take the same time. So the second execution of a plan enqueues
    /// one extra kernel for each plan that is faster. If the convolution has a plan whose kernel
    /// spills registers, benchmark mode also takes memory for stacks.
    fn cudnnBackendExecute(
        handle: Handle<CudnnSession>, plan: Handle<Descriptor>, _pack: *const c_void,
    ) -> Outcome {
        let stream = handle.read(|session| session.stream)?;
        let again = plan.read(|plan| {
            let second = plan.executions.fetch_add(1, Ordering::Relaxed) == 1;
            let Some((convolution, plan)) = plan.plan().filter(|_| second) else { return Ok(0) };
            // Only benchmark mode runs plans with a higher rank.
            if plan.rank > 1 {
                report::timed_workspace(plan.workspace);
                if convolution.spills() && !device::load(Loaded::CudnnStacks) {
                    return Err(CudnnCode::ALLOCATION_FAILED);
                }
            }
            Ok(plan.rank)
        })??;
        (0..=again).for_each(|_| device::launch(stream));
        Ok(())
    }

    /// Does nothing, because computed attributes are calculated when they are read.
    fn cudnnBackendFinalize(descriptor: Handle<Descriptor>) -> Outcome {
        descriptor.read(|_| ())
    }

    fn cudnnBackendSetAttribute(
        descriptor: Handle<Descriptor>, attribute: c_int, of: c_int, count: i64,
        elements: In<c_void>,
    ) -> Outcome {
        let count = usize::try_from(count).map_err(|_| CudnnCode::BAD_PARAM)?;
        let value = Value::read(of, count, elements)?;
        if let (attribute::PACK_WORKSPACE, Value::Elements { bytes, .. }) = (attribute, &value) {
            let address = bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            workspaces::note_address(address as *const c_void);
        }
        descriptor.read(|descriptor| descriptor.set(attribute, value))
    }

    /// Writes at most `wanted` elements of an attribute, and its number of elements. Descriptors
    /// are copied into the descriptors that the caller passes.
    fn cudnnBackendGetAttribute(
        descriptor: Handle<Descriptor>, attribute: c_int, of: c_int, wanted: i64, count: Out<i64>,
        elements: Out<c_void>,
    ) -> Outcome {
        let value = descriptor.read(|descriptor| descriptor.get(attribute))?;
        let held = value.as_ref().map_or(0, Value::count);
        let most = if elements.is_null() { 0 } else { usize::try_from(wanted).unwrap_or(0) };
        if let Some(value) = value {
            if let (attribute::PLAN_WORKSPACE, Value::Elements { bytes, .. }) = (attribute, &value) {
                let size = bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                workspaces::note_size(size);
            }
            value.write(of, most, elements)?;
        }
        count.write_if_wanted(held as i64)
    }
}

impl Descriptor {
    fn new<const N: usize>(kind: c_int, attributes: [(c_int, Value); N]) -> Self {
        let attributes = Arc::new(Mutex::new(BTreeMap::from(attributes)));
        Self { kind, attributes, executions: Arc::default() }
    }

    fn set(&self, attribute: c_int, value: Value) {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).insert(attribute, value);
    }

    /// Returns a computed attribute, or the value that the program set.
    fn get(&self, attribute: c_int) -> Option<Value> {
        match (self.kind, attribute) {
            (kind::HEURISTIC, attribute::HEURISTIC_RESULTS) => {
                Some(Value::Descriptors(self.engine_configs()?))
            }
            (kind::ENGINE, attribute::ENGINE_NOTES) => {
                let uses_tensor_cores = self.plan().is_some_and(|(_, plan)| plan.rounds);
                let bytes = TENSOR_CORE.to_ne_bytes().to_vec();
                uses_tensor_cores.then_some(Value::Elements { count: 1, bytes })
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

    /// Returns the engine configurations of a heuristic; `None` without a graph.
    fn engine_configs(&self) -> Option<Vec<Self>> {
        let graph = self.kept(attribute::HEURISTIC_GRAPH)?;
        let graphs = self.descriptors(attribute::HEURISTIC_GRAPH);
        let plans = graphs.iter().find_map(Self::convolution_in).map(|it| it.plans());
        let engines = match plans {
            Some(_) if self.integer(attribute::HEURISTIC_MODE) == Some(FALLBACK) => {
                LAST_ENGINE..LAST_ENGINE + 1
            }
            Some(plans) => 0..plans.len() as u64,
            None => 0..1,
        };
        let config = |index| {
            let engine = [
                (attribute::ENGINE_GRAPH, graph.clone()),
                (attribute::ENGINE_INDEX, number(index)),
            ];
            let engine = Value::Descriptors(vec![Self::new(kind::ENGINE, engine)]);
            Self::new(kind::ENGINE_CONFIG, [(attribute::CONFIG_ENGINE, engine)])
        };
        Some(engines.map(config).collect())
    }

    /// Returns a 4-byte number that the program set.
    fn integer(&self, attribute: c_int) -> Option<c_int> {
        match self.kept(attribute)? {
            Value::Elements { bytes, .. } => {
                bytes.as_slice().try_into().ok().map(c_int::from_ne_bytes)
            }
            Value::Descriptors(_) => None,
        }
    }

    /// Returns the engine of a plan or of an engine configuration, or the engine itself.
    fn engine(&self) -> Option<Self> {
        match self.kind {
            kind::PLAN => self.descriptors(attribute::PLAN_CONFIG).first()?.engine(),
            kind::ENGINE_CONFIG => self.descriptors(attribute::CONFIG_ENGINE).first().cloned(),
            kind::ENGINE => Some(self.clone()),
            _ => None,
        }
    }

    /// Returns the convolution that this descriptor's engine computes, and the convolution's plan.
    /// Returns `None` if the graph has no convolution.
    fn plan(&self) -> Option<(Convolution, Plan)> {
        let engine = self.engine()?;
        let index = *engine.numbers(attribute::ENGINE_INDEX).first()?;
        let graphs = engine.descriptors(attribute::ENGINE_GRAPH);
        let convolution = graphs.iter().find_map(Self::convolution_in)?;
        let plans = convolution.plans();
        let last = Plan { workspace: 0, rank: plans.len() as u32, rounds: false };
        let plan = usize::try_from(index).ok().and_then(|index| plans.get(index).copied());
        Some((convolution, plan.unwrap_or(last)))
    }

    /// Returns the workspace of a plan or of an engine configuration, in bytes.
    fn workspace(&self) -> u64 {
        let attention = || {
            let graphs = self.engine()?.descriptors(attribute::ENGINE_GRAPH);
            Some(attention_in(&graphs.first()?.descriptors(attribute::GRAPH_OPERATIONS)))
        };
        self.plan().map(|(_, plan)| plan.workspace).or_else(attention).unwrap_or(0)
    }

    fn convolution_in(&self) -> Option<Convolution> {
        self.descriptors(attribute::GRAPH_OPERATIONS).iter().find_map(Self::convolution)
    }

    /// Returns the convolution that this operation computes; `None` for other operations.
    fn convolution(&self) -> Option<Convolution> {
        // The pass, and the number of the attribute for the window (stride, padding and dilation).
        // The next three attributes are the filter, the input and the output.
        let (pass, first) = match self.kind {
            kind::CONVOLUTION => (Pass::Forward, 702),
            kind::CONVOLUTION_FINDS_X => (Pass::Input, 708),
            kind::CONVOLUTION_FINDS_W => (Pass::Filter, 714),
            _ => return None,
        };
        let shape = |offset| Some(self.descriptors(first + offset).first()?.shape());
        let window = self.descriptors(first).first().map(Self::window).unwrap_or_default();
        Some(Convolution::new(pass, [shape(2)?, shape(1)?, shape(3)?], window))
    }

    /// Returns the stride, padding and dilation of a convolution descriptor.
    fn window(&self) -> Window {
        let list = |attribute| {
            let numbers = self.numbers(attribute).into_iter();
            numbers.map(|number| u64::try_from(number).unwrap_or(0)).collect()
        };
        Window {
            stride: list(attribute::WINDOW_STRIDE),
            padding: list(attribute::WINDOW_PADDING),
            dilation: list(attribute::WINDOW_DILATION),
        }
    }

    /// Returns the shape of a tensor descriptor.
    fn shape(&self) -> Shape {
        let sizes: Vec<u64> = self
            .numbers(attribute::TENSOR_SIZES)
            .into_iter()
            .map(|size| u64::try_from(size).unwrap_or(0))
            .collect();
        let strides = self.numbers(attribute::TENSOR_STRIDES);
        let data_type = self.integer(attribute::TENSOR_TYPE).unwrap_or(0);
        let mut shape = Shape::new(element_bytes(data_type), sizes, &strides);
        shape.is_half = data_type == HALF;
        shape
    }
}

/// Returns the workspace of attention, in bytes; 0 if the operations do not compute attention. A
/// graph expresses attention as one operation, or as matrix products and operations between them.
fn attention_in(operations: &[Descriptor]) -> u64 {
    let number_of = |kind| operations.iter().filter(|operation| operation.kind == kind).count();
    let whole = number_of(kind::ATTENTION) + number_of(kind::ATTENTION_BACKWARD) > 0;
    if whole || number_of(kind::MATRIX_PRODUCT) >= PRODUCTS { ATTENTION } else { 0 }
}

fn number(value: u64) -> Value {
    Value::Elements { count: 1, bytes: (value as i64).to_ne_bytes().to_vec() }
}

/// Returns the size of an element of the attribute type `of`, in bytes.
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

    /// Writes at most `most` elements. Writes descriptors only if the type is `DESCRIPTOR`, and
    /// numbers only if it is another type.
    fn write(&self, of: c_int, most: usize, elements: Out<c_void>) -> Outcome {
        match self {
            Self::Elements { bytes, .. } if of != of::DESCRIPTOR => {
                let most = most.saturating_mul(size_of(of));
                // SAFETY: the program passes room for `most` elements of this size.
                unsafe { elements.cast() }.write_all(bytes.iter().copied().take(most))
            }
            Self::Descriptors(list) if of == of::DESCRIPTOR => {
                // SAFETY: a program that requests descriptors passes an array of descriptors.
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
