//! Arithmetic of elements, reductions, and copies with steps, on the device.
//!
//! What a program does with its data between two kernels or libraries of others: scale it, compare
//! it, sum it up, take a column of it. gpuheap is no tensor library: there is no linear algebra, and
//! each operation is a pass over memory.
//!
//! ```
//! use gpuheap::Device;
//! use gpuheap::ndarray::{array, s};
//!
//! # fn main() -> Result<(), gpuheap::Error> {
//! let target = Device::open("emulated:1GiB")?.heap()?.target()?;
//! let a = target.array(&array![[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
//! let b = target.array(&[10.0, 20.0, 30.0])?;
//!
//! let c = ((&a * 2.0)? + &b)?; // a new array, then the same memory again
//! assert_eq!(c.to_ndarray()?, array![[12.0, 24.0, 36.0], [18.0, 30.0, 42.0]]);
//! let centred = (&c - c.mean_axis(0)?)?; // means of columns, from each row
//! assert_eq!(centred.copy_slice(s![.., 0])?.to_vec()?, [-3.0, 3.0]);
//! assert_eq!(centred.greater(0.0)?.sum()?, 3);
//! assert_eq!(centred.cast::<i8>()?.max()?, 3);
//! # Ok(()) }
//! ```
//!
//! # What there is
//!
//! | | result | waits |
//! |---|---|---|
//! | `+ - * /` of arrays and numbers, `-a`, `!mask` | array | |
//! | [`try_add`], [`try_sub`], [`try_mul`], [`try_div`], [`try_neg`], [`try_not`]; [`try_sub_from`], [`try_div_into`] with a number on the left | array | |
//! | [`add_assign`], [`sub_assign`], [`mul_assign`], [`div_assign`], [`fill`] | in place | |
//! | [`equal`], [`not_equal`], [`less`], [`less_equal`], [`greater`], [`greater_equal`] | array of `bool` | |
//! | [`cast`] | array | |
//! | [`sum_axis`], [`mean_axis`], [`min_axis`], [`max_axis`] | array with an axis less | |
//! | [`sum`], [`mean`], [`min`], [`max`], [`all`], [`any`] | value | for its work |
//! | [`sum_by_key`], [`mean_by_key`], [`count_by_key`] | array | for its work, to check the keys |
//! | [`copy_slice`], [`copy_permuted`], [`copy_transposed`], [`broadcast_to`] | array | |
//! | [`write_slice`] | in place | |
//!
//! Not here are roots and other functions, variances, sorting and searching. What is small goes down and up
//! ([`to_ndarray`](crate::ArrayBase::to_ndarray), `mapv`, [`array`](crate::Target::array)); what is large is
//! for a kernel of yours, by [`device_ptr`](crate::ArrayBase::device_ptr).
//!
//! Elements are integers of 8 to 64 bits, `f32` and `f64`; of `bool` there are `!`, casts, sums, means
//! and questions; copies with steps take every [`Element`](crate::Element).
//!
//! # Operators
//!
//! The result of an operator is a `Result`, so each is followed by `?`. On the left is a number, a
//! reference to an array of any kind (`&array`, `&view`), or a [`DeviceArray`](crate::DeviceArray) by
//! value: that one is used up, and the result has its memory, if it has its shape. On the right is a
//! number of the same type, or an array, by reference or by value.
//!
//! Shapes go together as in `ndarray` and NumPy: from the last axis on, each length is the same in
//! both, or 1 in one of them, or missing, and what is short is repeated.
//!
//! A new array is made where its left side's [`target`](crate::ArrayBase::target) says: in its heap,
//! kind of memory and scope, on the stream of its last use, with the caller's line as its site. All
//! work is put on that stream, which first waits for what the right side was used for. Both sides have
//! to be on one device; any kinds of memory go together.
//!
//! Each operator has a method too, so that chains read: `a.try_add(&b)?.try_mul(2.0)?`. It takes the
//! left side by reference, whatever holds it, and makes a new array, as `&a + &b` does.
//!
//! An operator's error is one of shapes that do not go together, of arrays on two devices, of an array
//! that was freed, of memory that [ran out](crate::Error::out_of_memory), or the driver's own. What was
//! used up is freed then.
//!
//! # What is computed
//!
//! The same on an emulated device and on every GPU, to the last bit, but for the bits of a NaN and for
//! sums by key of floats.
//!
//! | | |
//! |---|---|
//! | integers | wrap: `MIN / -1` and `-MIN` are `MIN`; division truncates, and by 0 gives 0 |
//! | floats | IEEE 754: each operation is rounded once, never fused; subnormal numbers are kept; by 0 gives an infinity or NaN |
//! | `cast` | Rust's `as`: to integers it saturates, NaN becomes 0; between integers it wraps; to floats it rounds to the nearest; to `bool` it asks whether it is not 0 |
//! | comparisons | Rust's: false with a NaN, but for `not_equal`; `-0.0` equals `0.0` |
//! | `min`, `max` | NaN, if there is one; `-0.0` is less than `0.0`; of nothing an error |
//! | `sum` | of integers an `i64` or `u64`, wrapping; of `f32` an `f32` and of `f64` an `f64`, added in `f64` in an order that depends on the shape alone and rounded at the end; of nothing 0 |
//! | `mean` | of `f32` an `f32`, of others an `f64`: what each element is as `f64`, added, divided by their number, then rounded; of nothing an error |
//! | sums by key | of floats in `f64`, in any order: the last bits may differ from run to run |
//!
//! # Kernels
//!
//! Each kernel is loaded when it is first needed, which may wait for the device and takes
//! milliseconds where the driver has not kept it from an earlier run, and it is unloaded with the
//! context. Where memory is too short to load it, the heap climbs its [ladder](crate::Step).
//!
//! [`try_add`]: crate::ArrayBase::try_add
//! [`try_sub`]: crate::ArrayBase::try_sub
//! [`try_mul`]: crate::ArrayBase::try_mul
//! [`try_div`]: crate::ArrayBase::try_div
//! [`try_neg`]: crate::ArrayBase::try_neg
//! [`try_not`]: crate::ArrayBase::try_not
//! [`try_sub_from`]: crate::ArrayBase::try_sub_from
//! [`try_div_into`]: crate::ArrayBase::try_div_into
//! [`add_assign`]: crate::ArrayBase::add_assign
//! [`sub_assign`]: crate::ArrayBase::sub_assign
//! [`mul_assign`]: crate::ArrayBase::mul_assign
//! [`div_assign`]: crate::ArrayBase::div_assign
//! [`fill`]: crate::ArrayBase::fill
//! [`equal`]: crate::ArrayBase::equal
//! [`not_equal`]: crate::ArrayBase::not_equal
//! [`less`]: crate::ArrayBase::less
//! [`less_equal`]: crate::ArrayBase::less_equal
//! [`greater`]: crate::ArrayBase::greater
//! [`greater_equal`]: crate::ArrayBase::greater_equal
//! [`cast`]: crate::ArrayBase::cast
//! [`sum_axis`]: crate::ArrayBase::sum_axis
//! [`mean_axis`]: crate::ArrayBase::mean_axis
//! [`min_axis`]: crate::ArrayBase::min_axis
//! [`max_axis`]: crate::ArrayBase::max_axis
//! [`sum`]: crate::ArrayBase::sum
//! [`mean`]: crate::ArrayBase::mean
//! [`min`]: crate::ArrayBase::min
//! [`max`]: crate::ArrayBase::max
//! [`all`]: crate::ArrayBase::all
//! [`any`]: crate::ArrayBase::any
//! [`sum_by_key`]: crate::ArrayBase::sum_by_key
//! [`mean_by_key`]: crate::ArrayBase::mean_by_key
//! [`count_by_key`]: crate::ArrayBase::count_by_key
//! [`copy_slice`]: crate::ArrayBase::copy_slice
//! [`copy_permuted`]: crate::ArrayBase::copy_permuted
//! [`copy_transposed`]: crate::ArrayBase::copy_transposed
//! [`broadcast_to`]: crate::ArrayBase::broadcast_to
//! [`write_slice`]: crate::ArrayBase::write_slice

mod cast;
mod compare;
mod groups;
mod launch;
mod number;
mod operand;
mod operators;
mod reduce;
mod slices;

pub(crate) use cast::converted;
pub use number::{Key, Number, Scalar, Signed};
pub use operand::Operand;
