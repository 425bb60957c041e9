//! Operation graphs: descriptors that keep what they are given, and one engine for each graph.
//!
//! An execution plan leads to its graph by what it was given: the engine's configuration, the
//! engine, the graph, its operations, their tensors.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use super::tensor::element_bytes;
use super::workspace::{ATTENTION, Convolution, Shape};
use super::{BAD_PARAM, NULL_POINTER, SUCCESS, put};

/// Kinds of descriptors.
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

/// Attributes.
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

/// Types of attributes.
mod of {
    use std::ffi::c_int;

    pub(super) const INT64: c_int = 3;
    pub(super) const DESCRIPTOR: c_int = 15;
}

/// Matrix products of attention's forward pass; its backward pass has more.
const PRODUCTS: usize = 2;

/// Backend descriptor. Its address is an `Arc` of the program's.
struct Descriptor {
    kind: c_int,
    attributes: Mutex<BTreeMap<c_int, Value>>,
}

/// Value of an attribute.
#[derive(Clone)]
enum Value {
    Elements { count: usize, bytes: Vec<u8> },
    Descriptors(Vec<Arc<Descriptor>>),
}

/// Makes a descriptor of any kind.
///
/// # Safety
///
/// `made` is null or valid for a write.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendCreateDescriptor(kind: c_int, made: *mut *mut c_void) -> c_int {
    if made.is_null() {
        return NULL_POINTER;
    }
    let descriptor = Arc::into_raw(Descriptor::new(kind, []));
    // SAFETY: not null, so valid for a write.
    unsafe { put(made, descriptor.cast_mut().cast()) }
}

/// Ends a descriptor. Those that were given it keep what it holds.
///
/// # Safety
///
/// `descriptor` is null or live, and is not used afterwards.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendDestroyDescriptor(descriptor: *mut c_void) -> c_int {
    if !descriptor.is_null() {
        // SAFETY: the caller promises a descriptor that was made above.
        drop(unsafe { Arc::from_raw(descriptor.cast::<Descriptor>()) });
    }
    SUCCESS
}

/// Succeeds: what a descriptor leads to is looked up when it is asked for.
///
/// # Safety
///
/// `descriptor` is null or live.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendFinalize(descriptor: *mut c_void) -> c_int {
    if descriptor.is_null() { NULL_POINTER } else { SUCCESS }
}

/// Keeps an attribute.
///
/// # Safety
///
/// `descriptor` is null or live. `elements` is valid for `count` reads of the type; descriptors
/// among them are live.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendSetAttribute(
    descriptor: *mut c_void,
    attribute: c_int,
    of: c_int,
    count: i64,
    elements: *const c_void,
) -> c_int {
    // SAFETY: the caller promises a descriptor that is null or live.
    let Some(descriptor) = (unsafe { descriptor.cast::<Descriptor>().as_ref() }) else {
        return NULL_POINTER;
    };
    let Ok(count) = usize::try_from(count) else { return BAD_PARAM };
    if elements.is_null() && count > 0 {
        return NULL_POINTER;
    }
    // SAFETY: the caller promises the elements.
    let Some(value) = (unsafe { Value::read(of, count, elements) }) else { return BAD_PARAM };
    descriptor.set(attribute, value);
    SUCCESS
}

/// Writes an attribute, as many elements as there are and at most `wanted`, and how many there are.
/// Descriptors are written into those that the caller made and passes.
///
/// # Safety
///
/// `descriptor` is null or live. `count` is null or valid for a write. `elements` is null or valid
/// for `wanted` writes of the type; if that is a descriptor, for as many reads of live ones.
// SAFETY: the name is cuDNN's, and this library replaces it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnBackendGetAttribute(
    descriptor: *mut c_void,
    attribute: c_int,
    of: c_int,
    wanted: i64,
    count: *mut i64,
    elements: *mut c_void,
) -> c_int {
    // SAFETY: the caller promises a descriptor that is null or live.
    let Some(descriptor) = (unsafe { descriptor.cast::<Descriptor>().as_ref() }) else {
        return NULL_POINTER;
    };
    let value = descriptor.get(attribute);
    let held = value.as_ref().map_or(0, Value::count);
    let most = if elements.is_null() { 0 } else { usize::try_from(wanted).unwrap_or(0) };
    if let Some(value) = value {
        // SAFETY: the caller promises the elements.
        unsafe { value.write(of, most, elements) };
    }
    if !count.is_null() {
        // SAFETY: not null, so valid for a write.
        unsafe { put(count, held as i64) };
    }
    SUCCESS
}

impl Descriptor {
    fn new<const N: usize>(kind: c_int, attributes: [(c_int, Value); N]) -> Arc<Self> {
        Arc::new(Self { kind, attributes: Mutex::new(BTreeMap::from(attributes)) })
    }

    fn set(&self, attribute: c_int, value: Value) {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).insert(attribute, value);
    }

    /// Returns an attribute: one that the library finds, or one that was set.
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

    fn kept(&self, attribute: c_int) -> Option<Value> {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).get(&attribute).cloned()
    }

    fn descriptors(&self, attribute: c_int) -> Vec<Arc<Self>> {
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

    /// Bytes that a plan or an engine's configuration asks for.
    fn workspace(&self) -> u64 {
        let step = |list: Vec<Arc<Self>>, attribute| -> Vec<Arc<Self>> {
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

    /// Returns the convolution that an operation is.
    fn convolution(&self) -> Option<Convolution> {
        // The filter, the input and the output of each kind.
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

    /// Shape of a tensor.
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

/// Bytes of attention, if the operations are that: one operation, or matrix products and what lies
/// between them.
fn attention_in(operations: &[Arc<Descriptor>]) -> u64 {
    let number_of = |kind| operations.iter().filter(|operation| operation.kind == kind).count();
    let whole = number_of(kind::ATTENTION) + number_of(kind::ATTENTION_BACKWARD) > 0;
    if whole || number_of(kind::MATRIX_PRODUCT) >= PRODUCTS { ATTENTION } else { 0 }
}

fn number(value: u64) -> Value {
    Value::Elements { count: 1, bytes: (value as i64).to_ne_bytes().to_vec() }
}

/// Returns the size of an element of an attribute, bytes.
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
    /// # Safety
    ///
    /// `elements` is valid for `count` reads of the type, unless that is 0. Descriptors among them
    /// are live.
    unsafe fn read(of: c_int, count: usize, elements: *const c_void) -> Option<Self> {
        if of == of::DESCRIPTOR {
            let read = |place| {
                // SAFETY: the caller promises `count` elements.
                let address = unsafe { elements.cast::<*const Descriptor>().add(place).read() };
                if address.is_null() {
                    return None;
                }
                // SAFETY: the caller promises that the descriptor is live, so that its `Arc` is.
                unsafe {
                    Arc::increment_strong_count(address);
                    Some(Arc::from_raw(address))
                }
            };
            return Some(Self::Descriptors((0..count).map(read).collect::<Option<_>>()?));
        }
        let length = count.checked_mul(size_of(of))?;
        let bytes = if length == 0 {
            Vec::new()
        } else {
            // SAFETY: the caller promises `count` elements.
            unsafe { std::slice::from_raw_parts(elements.cast::<u8>(), length) }.to_vec()
        };
        Some(Self::Elements { count, bytes })
    }

    fn count(&self) -> usize {
        match self {
            Self::Elements { count, .. } => *count,
            Self::Descriptors(list) => list.len(),
        }
    }

    /// # Safety
    ///
    /// `elements` is valid for `most` writes of the type; if that is a descriptor, for as many
    /// reads of live ones.
    unsafe fn write(&self, of: c_int, most: usize, elements: *mut c_void) {
        match self {
            Self::Elements { bytes, .. } if of != of::DESCRIPTOR => {
                let length = bytes.len().min(most.saturating_mul(size_of(of)));
                if length > 0 {
                    // SAFETY: valid for `most` elements, and `bytes` is a vector of our own.
                    unsafe {
                        std::ptr::copy_nonoverlapping(bytes.as_ptr(), elements.cast(), length);
                    }
                }
            }
            Self::Descriptors(list) if of == of::DESCRIPTOR => {
                for (place, from) in list.iter().take(most).enumerate() {
                    // SAFETY: valid for `most` reads of descriptors that are null or live.
                    let to =
                        unsafe { elements.cast::<*const Descriptor>().add(place).read().as_ref() };
                    if let Some(to) = to {
                        let attributes =
                            from.attributes.lock().unwrap_or_else(PoisonError::into_inner).clone();
                        *to.attributes.lock().unwrap_or_else(PoisonError::into_inner) = attributes;
                    }
                }
            }
            // Asked for as another type than it has.
            _ => {}
        }
    }
}
