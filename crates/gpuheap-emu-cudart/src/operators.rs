//! PyTorch's operators that read results from the device, or write a known value.
//!
//! In a dry run without kernels, a hook chooses the results that a program reads. The hook calls
//! [`gpuheap_emulated_operands`] for the type and sizes of the tensor. The values of fills are
//! passed to the emulated driver, so that reads return them.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::sync::OnceLock;

use crate::contents::{self, Content};
use crate::torch::{TORCH, Tensor, Torch, driver, find};

/// Maximum number of dimensions in an [`Operand`].
const DIMENSIONS: usize = 8;

/// Tensor that an operator reads.
#[repr(C)]
struct Operand {
    operator: *const c_char,
    /// PyTorch's number for the element type.
    element_type: c_int,
    /// Number of dimensions, at most 8.
    dimensions: c_int,
    sizes: [i64; DIMENSIONS],
    /// Number of consecutive elements of which exactly one is not 0, as in a one-hot tensor; 1 if
    /// unknown.
    one_of: i64,
    /// Largest value of an element; 0 if unknown.
    most: i64,
    /// Sum of all elements; 0 if unknown.
    sum: i64,
}

/// Argument of a C++ function in a register: an address, an integer or a flag.
type Argument = *mut c_void;

/// Defines functions that replace PyTorch's operators. Each replacement passes the call of
/// PyTorch's own function to `$through`. `$tensor` is the index of the tensor argument. The first
/// six arguments are `a` to `f`. If the result is of a class type, `a` is the result's address.
/// Arguments after the sixth follow the word `and`.
macro_rules! operators {
    ($($name:ident = $symbol:literal by $through:ident($tensor:literal) $(and $($more:ident: $type:ty),+)?;)*) => {$(
        #[doc = concat!("Calls PyTorch's `", stringify!($name), "`.")]
        // SAFETY: only PyTorch has a function of this name, and its libraries are loaded after this
        // one. So this function replaces PyTorch's. On x86-64, the first six arguments are in
        // registers, and the arguments `$more` are on the stack.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name(
            a: Argument,
            b: Argument,
            c: Argument,
            d: Argument,
            e: Argument,
            f: Argument,
            $($($more: $type),+)?
        ) -> Argument {
            type Function = unsafe extern "C-unwind" fn(
                Argument, Argument, Argument, Argument, Argument, Argument, $($($type),+)?
            ) -> Argument;
            static PYTORCHS: OnceLock<Function> = OnceLock::new();
            let function = *PYTORCHS.get_or_init(|| {
                let found = pytorchs(concat!($symbol, "\0"), $name as *const ());
                // SAFETY: the mangled name of a C++ function includes the types of its arguments.
                unsafe { std::mem::transmute::<Argument, Function>(found) }
            });
            // SAFETY: PyTorch called this replacement of `function` with these arguments.
            let call = || unsafe { function(a, b, c, d, e, f, $($($more),+)?) };
            // SAFETY: PyTorch passed a tensor that lives during the call.
            unsafe { $through(concat!(stringify!($name), "\0"), [a, b][$tensor].cast(), [a, b, c], call) }
        }
    )*};
}

operators! {
    copy_ = "_ZN2at4_ops5copy_4callERNS_6TensorERKS2_b" by read(1);
    _local_scalar_dense = "_ZN2at4_ops19_local_scalar_dense4callERKNS_6TensorE" by read(1);
    nonzero = "_ZN2at4_ops7nonzero4callERKNS_6TensorE" by read(1);
    _unique2 = "_ZN2at4_ops8_unique24callERKNS_6TensorEbbb" by unique(1);
    unique_dim = "_ZN2at4_ops10unique_dim4callERKNS_6TensorElbbb" by unique(1);
    unique_consecutive =
        "_ZN2at4_ops18unique_consecutive4callERKNS_6TensorEbbSt8optionalIlE" by unique(1);
    repeat_interleave =
        "_ZN2at4_ops24repeat_interleave_Tensor4callERKNS_6TensorESt8optionalIN3c106SymIntEE"
        by read(1);
    _coalesce = "_ZN2at4_ops9_coalesce4callERKNS_6TensorE" by read(1);
    _nested_tensor_from_mask =
        "_ZN2at4_ops24_nested_tensor_from_mask4callERKNS_6TensorES4_b" by read(1);
    fill_scalar = "_ZN2at4_ops12fill__Scalar4callERNS_6TensorERKN3c106ScalarE" by fill(0);
    one_hot = "_ZN2at4_ops7one_hot4callERKNS_6TensorEl" by note_content(1);
    sum = "_ZN2at4_ops3sum4callERKNS_6TensorESt8optionalIN3c1010ScalarTypeEE" by note_content(1);
    sum_of_dimensions = "_ZN2at4_ops15sum_dim_IntList4callERKNS_6TensorEN3c1016OptionalArrayRefIlEEbSt8optionalINS5_10ScalarTypeEE"
        by note_content(1) and g: Argument, h: Argument, i: Argument;
    max = "_ZN2at4_ops3max4callERKNS_6TensorE" by note_content(1);
    index = "_ZN2at4_ops12index_Tensor4callERKNS_6TensorERKN3c104ListISt8optionalIS2_EEE"
        by note_content(1);
    count_nonzero =
        "_ZN2at4_ops13count_nonzero4callERKNS_6TensorESt8optionalIlE" by note_content(1);
    count_nonzero_of_dimensions =
        "_ZN2at4_ops25count_nonzero_dim_IntList4callERKNS_6TensorEN3c108ArrayRefIlEE"
        by note_content(1);
    bincount =
        "_ZN2at4_ops8bincount4callERKNS_6TensorERKSt8optionalIS2_EN3c106SymIntE" by note_content(1);
}

/// Returns PyTorch's own function of this name. Aborts if PyTorch lacks the function: PyTorch is
/// calling it, and there is no result to return.
fn pytorchs(symbol: &'static str, ours: *const ()) -> Argument {
    let name = CStr::from_bytes_with_nul(symbol.as_bytes()).unwrap_or_default();
    // SAFETY: the pointer is not called here.
    let found: Option<Argument> = unsafe { find(TORCH, name) };
    match found.filter(|&found| !std::ptr::addr_eq(found, ours)) {
        Some(found) => found,
        None => {
            let line = format!("libtorch_cpu.so has no function {symbol}, which PyTorch calls");
            let _ = writeln!(std::io::stderr(), "gpuheap: cudart: {line}");
            std::process::abort()
        }
    }
}

/// Calls an operator. During the call, the hook can inspect the tensor that the operator reads.
///
/// # Safety
///
/// `tensor` points to a tensor of PyTorch that lives during the call.
unsafe fn read(
    operator: &'static str,
    tensor: *const Tensor,
    _: [Argument; 3],
    call: impl FnOnce() -> Argument,
) -> Argument {
    let _entered = Entered::new(Running { operator, tensor });
    call()
}

/// Calls an operator that finds distinct elements. The result is a tuple of three tensors: the last
/// tensor counts the elements. The C++ library stores the last tensor first.
///
/// # Safety
///
/// The conditions of [`note_content`].
unsafe fn unique(
    operator: &'static str,
    tensor: *const Tensor,
    arguments: [Argument; 3],
    call: impl FnOnce() -> Argument,
) -> Argument {
    // SAFETY: by the caller's contract, the tensor lives during the call.
    let call = || unsafe { read(operator, tensor, arguments, call) };
    // SAFETY: by the caller's contract.
    unsafe { note_content(operator, tensor, arguments, call) }
}

/// Calls `fill_`, and reports the filled memory to the emulated driver.
///
/// # Safety
///
/// `tensor` points to a tensor of PyTorch, and the second argument to a [`Scalar`]. Both live
/// during the call.
unsafe fn fill(
    _: &'static str,
    tensor: *const Tensor,
    [_, number, _]: [Argument; 3],
    call: impl FnOnce() -> Argument,
) -> Argument {
    type Filled = unsafe extern "C" fn(u64, u64, u64, c_int);
    static FILLED: OnceLock<Option<Filled>> = OnceLock::new();
    let result = call();
    // SAFETY: by the caller's contract, the tensor and the scalar live during the call.
    let (tensor, scalar) = unsafe { (&*tensor, &*number.cast::<Scalar>()) };
    // SAFETY: PyTorch created the tensor.
    let memory =
        |torch: &Torch| unsafe { Some((torch.dense_memory(tensor)?, torch.kind(tensor)?)) };
    let Some(((address, bytes), (element_type, width))) = Torch::get().and_then(memory) else {
        return result;
    };
    let Some(value) = scalar.as_element(element_type) else { return result };
    // SAFETY: only the emulated driver has a function of that name, with this type.
    if let Some(filled) = FILLED.get_or_init(|| unsafe { driver(c"gpuheap_emulated_filled") }) {
        // SAFETY: the function accepts all numbers.
        unsafe { filled(address, bytes, value, width as c_int) };
    }
    result
}

/// Calls an operator, and records a fact about the elements of its result:
///
/// * `one_hot`: exactly one element of each row is not 0;
/// * `count_nonzero`, and `sum` of booleans: no element exceeds the number of elements counted;
/// * `bincount`, and the counts of `unique`: the elements sum to the number of elements counted;
/// * `max` and `index`: the upper bound of the tensor's elements, if known, holds for the result;
/// * `index` of a one-hot tensor: exactly one element of each row is not 0.
///
/// # Safety
///
/// `tensor` points to a tensor of PyTorch that lives during the call. The first argument is the
/// address of the result.
unsafe fn note_content(
    operator: &'static str,
    tensor: *const Tensor,
    [result, _, classes]: [Argument; 3],
    call: impl FnOnce() -> Argument,
) -> Argument {
    let returned = call();
    let note = |torch: &Torch| {
        // SAFETY: PyTorch wrote the result to the first argument's address. By the caller's
        // contract, the tensor lives during the call.
        let (result, tensor) = unsafe { (&*result.cast::<Tensor>(), &*tensor) };
        // SAFETY: PyTorch created `result` and `tensor`.
        let (memory, own, sizes, results, kind) = unsafe {
            let (memory, own) = (torch.memory(result)?, torch.memory(tensor)?);
            (memory, own, torch.sizes(tensor)?, torch.sizes(result)?, torch.kind(tensor)?)
        };
        let elements: i64 = sizes.iter().product();
        let count = results.iter().product();
        // Each distinct element is counted at least once.
        let unique = |sum: i64| Content::SumOf { sum, count, most: sum - (count - 1).min(sum) };
        let content = match operator.trim_end_matches('\0') {
            "one_hot" => Content::OneOf(i64::try_from(classes.addr()).unwrap_or(1).max(1)),
            name @ ("max" | "index") => match contents::at(own.0)? {
                Content::OneOf(classes) if name == "index" => Content::OneOf(classes),
                Content::AtMost(most) | Content::SumOf { most, .. } => Content::AtMost(most),
                _ => return None,
            },
            "bincount" => Content::SumOf { sum: elements, count, most: elements },
            "_unique2" => unique(elements),
            // `classes` is the dimension. A negative dimension counts from the last one.
            "unique_dim" => {
                let dimension = classes.addr() as i64;
                let from_last = if dimension < 0 { sizes.len() as i64 } else { 0 };
                unique(*sizes.get(usize::try_from(dimension + from_last).ok()?)?)
            }
            // The optional dimension is in further registers.
            "unique_consecutive" if sizes.len() == 1 => unique(elements),
            "unique_consecutive" => return None,
            name if name.starts_with("sum") && kind.0 != BOOLEAN => return None,
            _ => Content::AtMost(elements.checked_div(count)?),
        };
        contents::insert(memory.0, memory.1, content);
        Some(())
    };
    Torch::get().and_then(note);
    returned
}

/// Name of the operator that merges the elements of a sparse tensor that have equal indices.
const COALESCE: &str = "_coalesce\0";
/// PyTorch's number of the type `int64`.
const INT64: c_int = 4;
/// PyTorch's number of the boolean type.
const BOOLEAN: c_int = 11;

/// `c10::Scalar`: a number of one of several types.
#[repr(C)]
struct Scalar {
    kind: c_int,
    _unused: [c_int; 3],
    /// Bits of a double, of an integer, or of a flag.
    bits: u64,
}

impl Scalar {
    /// `Tag::HAS_d`, for a double.
    const DOUBLE: c_int = 0;
    /// `Tag::HAS_i`, for an integer.
    const INTEGER: c_int = 1;

    /// Converts the number to an element of the type that PyTorch numbers `element_type`, and
    /// returns the element's bits. `None` if the element type or the number's type is not handled.
    fn as_element(&self, element_type: c_int) -> Option<u64> {
        let number = match self.kind {
            Scalar::DOUBLE => f64::from_bits(self.bits),
            Scalar::INTEGER => self.bits as i64 as f64,
            // A flag. The tag for flags differs between versions of PyTorch. So a value of 0 or 1
            // with an unknown tag counts as a flag.
            _ if self.bits <= 1 => self.bits as f64,
            _ => return None,
        };
        Some(match element_type {
            // Integers of 8 to 64 bits.
            0..=4 if self.kind == Scalar::INTEGER => self.bits,
            0..=4 => number as i64 as u64,
            // Half precision.
            5 if number == 0.0 => 0,
            5 if number == 1.0 => 0x3c00,
            6 => u64::from((number as f32).to_bits()),
            7 => number.to_bits(),
            BOOLEAN => u64::from(number != 0.0),
            // `bfloat16`: the upper half of single precision.
            15 => u64::from((number as f32).to_bits() >> 16),
            _ => return None,
        })
    }
}

/// An operator that a thread executes.
#[derive(Clone, Copy)]
struct Running {
    /// Name of the operator, null-terminated.
    operator: &'static str,
    /// Tensor that the operator reads. Valid until the operator returns.
    tensor: *const Tensor,
}

thread_local! {
    /// Operators that the thread executes, outermost first.
    static RUNNING: RefCell<Vec<Running>> = const { RefCell::new(Vec::new()) };
}

/// Guard that removes the last operator from [`RUNNING`] when it is dropped, also if a C++
/// exception leaves the operator.
struct Entered;

impl Entered {
    fn new(operator: Running) -> Entered {
        RUNNING.with_borrow_mut(|running| running.push(operator));
        Entered
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        RUNNING.with_borrow_mut(|running| running.pop());
    }
}

/// Writes the tensors that the calling thread's operators are reading, innermost first. Returns the
/// number of tensors, at most `most`.
///
/// # Safety
///
/// `operands` has room for `most` values.
// SAFETY: no other library exports a symbol of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpuheap_emulated_operands(operands: *mut Operand, most: usize) -> usize {
    let Some(torch) = Torch::get() else { return 0 };
    let running: Vec<Running> =
        RUNNING.with_borrow(|running| running.iter().rev().copied().collect());
    let mut count = 0;
    for Running { operator, tensor } in running.into_iter().take(most) {
        // SAFETY: the operators in the list have not returned, so their tensors live.
        let Some(operand) = (unsafe { operand(torch, operator, &*tensor) }) else { continue };
        // SAFETY: by the caller's contract, there is room for `most` values.
        unsafe { operands.add(count).write(operand) };
        count += 1;
    }
    count
}

/// Describes the tensor that an operator reads; `None` if the tensor has no device memory. For the
/// sparse tensor of `_coalesce`, describes a vector instead. The vector's length is the most
/// elements that may remain after elements with equal indices are merged.
///
/// # Safety
///
/// PyTorch created the tensor.
unsafe fn operand(torch: &Torch, operator: &'static str, tensor: &Tensor) -> Option<Operand> {
    let mut operand = Operand {
        operator: operator.as_ptr().cast(),
        element_type: INT64,
        dimensions: 1,
        sizes: [1; DIMENSIONS],
        one_of: 1,
        most: 0,
        sum: 0,
    };
    if operator == COALESCE {
        // SAFETY: by the caller's contract, PyTorch created the tensor. The tensor is sparse,
        // because `_coalesce` accepts no other tensors.
        operand.sizes[0] = unsafe { torch.most_merged(tensor)? };
        return Some(operand);
    }
    // SAFETY: by the caller's contract, PyTorch created the tensor.
    let ((address, _), (element_type, _), sizes) =
        unsafe { (torch.memory(tensor)?, torch.kind(tensor)?, torch.sizes(tensor)?) };
    let dimensions = sizes.len().min(DIMENSIONS);
    operand.sizes[..dimensions].copy_from_slice(&sizes[..dimensions]);
    (operand.element_type, operand.dimensions) = (element_type, dimensions as c_int);
    match contents::at(address) {
        Some(Content::OneOf(classes)) => operand.one_of = classes,
        Some(Content::AtMost(most)) => operand.most = most,
        Some(Content::SumOf { sum, count, .. }) if sizes.iter().product::<i64>() == count => {
            operand.sum = sum;
        }
        Some(Content::SumOf { most, .. }) => operand.most = most,
        None => {}
    }
    Some(operand)
}
