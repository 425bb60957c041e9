//! Elementwise arithmetic, reductions, and strided copies, on the device.
//!
//! Covers the steps of a program between two kernels or library calls: scale data, compare it, sum
//! it, copy a column. There is no linear algebra, and each operation is a pass over memory.
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
//! let c = ((&a * 2.0)? + &b)?; // `*` makes an array, `+` reuses it
//! assert_eq!(c.to_ndarray()?, array![[12.0, 24.0, 36.0], [18.0, 30.0, 42.0]]);
//! let centred = (&c - c.mean_axis(0)?)?; // subtracts each column's mean
//! assert_eq!(centred.copy_slice(s![.., 0])?.to_vec()?, [-3.0, 3.0]);
//! assert_eq!(centred.greater(0.0)?.sum()?, 3);
//! assert_eq!(centred.cast::<i8>()?.max()?, 3);
//! # Ok(()) }
//! ```
//!
//! # Operations
//!
//! | | result | waits |
//! |---|---|---|
//! | `+ - * /` of arrays and numbers, `-a`, `!mask` | array | |
//! | [`try_add`], [`try_sub`], [`try_mul`], [`try_div`], [`try_neg`], [`try_not`]; [`try_sub_from`], [`try_div_into`] with a number on the left | array | |
//! | [`add_assign`], [`sub_assign`], [`mul_assign`], [`div_assign`], [`fill`] | in place | |
//! | [`equal`], [`not_equal`], [`less`], [`less_equal`], [`greater`], [`greater_equal`] | array of `bool` | |
//! | [`cast`] | array | |
//! | [`sum_axis`], [`mean_axis`], [`min_axis`], [`max_axis`] | array with one axis less | |
//! | [`sum`], [`mean`], [`min`], [`max`], [`all`], [`any`] | value | for the value |
//! | [`sum_by_key`], [`mean_by_key`], [`count_by_key`] | array | for the check of the keys |
//! | counts, sums, extremes and squares of [`GroupedRows`], without missing values; [`take`] | array | |
//! | [`copy_slice`], [`copy_permuted`], [`copy_transposed`], [`broadcast_to`] | array | |
//! | [`write_slice`] | in place | |
//!
//! Roots and other functions, variances, sorting and searching are left out. For small data, copy
//! it to the host and back ([`to_ndarray`](crate::ArrayBase::to_ndarray), `mapv`,
//! [`array`](crate::Target::array)). For large data, write a kernel that takes
//! [`device_ptr`](crate::ArrayBase::device_ptr).
//!
//! Elements are integers of 8 to 64 bits, `f32` and `f64`. Arrays of `bool` have `!`, casts, sums,
//! means, [`all`] and [`any`]. Strided copies take every [`Element`](crate::Element).
//!
//! # Operators
//!
//! Every operator returns a `Result`, so write `?` after each operation. The left side is a number,
//! a reference to an array of any kind (`&array`, `&view`), or a
//! [`DeviceArray`](crate::DeviceArray) by value. An array by value is consumed, and the result
//! reuses its memory if the shape stays the same. The right side is a number of the same type, or
//! an array, by reference or by value.
//!
//! Shapes are broadcast as in `ndarray` and NumPy. Axes are compared from the last one on: two axes
//! match if their lengths are equal, or if one of them has length 1 or is missing. An axis of
//! length 1, or a missing one, is repeated.
//!
//! A new array is allocated by the left side's [`target`](crate::ArrayBase::target). It has the
//! same heap, kind of memory and scope, and is on the stream of the left side's last use. The
//! caller's line is recorded as the line that made the array. All work is enqueued on that stream,
//! after a wait for the work on the right side. Both sides have to be on one device; their kinds of
//! memory may differ.
//!
//! Each operator also exists as a method, for chains: `a.try_add(&b)?.try_mul(2.0)?`. A method
//! takes the left side by reference, whatever its kind, and returns a new array, as `&a + &b` does.
//!
//! An operator fails if the shapes cannot be broadcast together, the arrays are on two devices, an
//! array was freed, memory [ran out](crate::Error::out_of_memory), or the driver fails. A consumed
//! array is then freed.
//!
//! # Results
//!
//! Results are equal to the last bit on an emulated device and on every GPU, except the bits of a
//! NaN, and sums of floats by key.
//!
//! | | |
//! |---|---|
//! | integers | wrap: `MIN / -1` and `-MIN` are `MIN`; division truncates, and division by 0 gives 0 |
//! | floats | IEEE 754: each operation is rounded once, never fused; subnormal numbers are kept; division by 0 gives an infinity or NaN |
//! | `cast` | as Rust's `as`: to integers it saturates, and NaN becomes 0; between integers it wraps; to floats it rounds to the nearest; to `bool`, all but 0 is `true` |
//! | comparisons | as in Rust: false with a NaN, except `not_equal`; `-0.0` equals `0.0` |
//! | `min`, `max` | NaN, if an element is NaN; `-0.0` is less than `0.0`; an error for an empty array |
//! | `sum` | integers give an `i64` or `u64`, wrapping; `f32` gives an `f32` and `f64` an `f64`, added in `f64` in an order that depends on the shape alone, and rounded at the end; 0 for an empty array |
//! | `mean` | `f32` gives an `f32`, other types an `f64`; elements are converted to `f64` and added, the sum is divided by their number, then rounded; an error for an empty array |
//! | sums by key | floats are added in `f64`, in any order: the last bits may differ from run to run |
//!
//! # Kernels
//!
//! A kernel is loaded when it is first needed, and unloaded with the context. Loading may wait for
//! the device. If the driver's cache does not have the kernel from an earlier run, loading takes
//! milliseconds. If memory is too short for the kernel, the heap runs its [reclaim
//! steps](crate::ReclaimStep).
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
//! [`take`]: crate::ArrayBase::take
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
mod present;
mod reduce;
mod slices;

pub(crate) use cast::converted;
pub use number::{Key, Number, Scalar, Signed};
pub use operand::Operand;
pub use present::GroupedRows;
