//! Runs operations of the crate gpuheap on windows, the parts of memory that arrays show. The
//! element type is chosen at run time.
//!
//! Each function is compiled once for each element type that it accepts. [`cast`] and the
//! operations by key are compiled once for each pair of types.

use gpuheap::arithmetic::{GroupedRows, Key, Signed};
use gpuheap::ndarray::{IxDyn, SliceInfoElem};
use gpuheap::{DeviceArray, Error, Number as Num, Shared, SharedArray, Target};
use pyo3::prelude::*;

use super::index::Part;
use super::window::Window;
use crate::kind::{Kind, Native, Number, with_kind, with_size};
use crate::owner::Owner;

/// An elementwise operation with two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Add,
    Subtract,
    Multiply,
    Divide,
}

/// A comparison operator.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

/// A comparison of elements with a number. The number may have another type.
enum Compared {
    /// A comparison with a number that the element type can represent.
    With(Comparison, Number),
    /// One result for all elements.
    Same(bool),
}

impl Comparison {
    /// Converts `number` to the elements' type `kind`, and adjusts the comparison so that its
    /// results stay the same. If all elements have the same result, returns that result. Compares
    /// by value, not by type.
    fn against(self, kind: Kind, number: Number) -> Compared {
        match (kind, number) {
            (Kind::F32 | Kind::F64, _) => self.with_float(kind, number),
            (_, Number::Bool(is)) => self.with_whole(kind, is.into()),
            (_, Number::Int(int)) => self.with_whole(kind, int),
            (_, Number::Wide(float) | Number::Float(float)) if float.is_nan() => {
                Compared::Same(matches!(self, Comparison::NotEqual))
            }
            // A float beyond the range of `i128` saturates. It stays larger or smaller than every
            // element.
            (_, Number::Wide(float) | Number::Float(float)) => {
                let floor = float.floor();
                match self {
                    _ if floor == float => self.with_whole(kind, float as i128),
                    Comparison::Equal => Compared::Same(false),
                    Comparison::NotEqual => Compared::Same(true),
                    Comparison::Less | Comparison::LessEqual => {
                        Comparison::LessEqual.with_whole(kind, floor as i128)
                    }
                    Comparison::Greater | Comparison::GreaterEqual => {
                        Comparison::Greater.with_whole(kind, floor as i128)
                    }
                }
            }
        }
    }

    /// Returns the number of type `kind` that equals `number`. Returns `None` if the type has no
    /// such number.
    pub(crate) fn equal_number(kind: Kind, number: Number) -> Option<Number> {
        match Comparison::Equal.against(kind, number) {
            Compared::With(_, number) => Some(number),
            Compared::Same(_) => None,
        }
    }

    /// Converts the whole number `int` for a comparison with elements that are integers or a mask.
    /// If `int` is outside of the type's range, the result is the same for all elements.
    fn with_whole(self, kind: Kind, int: i128) -> Compared {
        let bits = 8 * kind.size() as u32;
        let (low, high) = match kind.class() {
            'b' => (0, 1),
            'u' => (0, (1_i128 << bits) - 1),
            _ => (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1),
        };
        match int {
            _ if int > high => Compared::Same(self.is_true_of_less()),
            _ if int < low => Compared::Same(self.is_true_of_greater()),
            _ => Compared::With(self, Number::Int(int)),
        }
    }

    /// Converts `number` for a comparison with float elements. A finite number beyond the type's
    /// finite range is treated as a value between the type's largest element and infinity.
    fn with_float(self, kind: Kind, number: Number) -> Compared {
        let value = match number {
            Number::Bool(is) => f64::from(u8::from(is)),
            Number::Int(int) => return Compared::With(self, Number::Int(int)),
            Number::Wide(value) | Number::Float(value) => value,
        };
        let is_infinite = matches!(number, Number::Float(_)) && value.is_infinite();
        let most = if kind == Kind::F32 { f32::MAX.into() } else { f64::MAX };
        let is_beyond = match kind {
            Kind::F32 => (value as f32).is_infinite(),
            _ => value.is_infinite(),
        };
        if is_infinite || !is_beyond {
            return Compared::With(self, Number::Float(value));
        }
        let is_positive = value > 0.0;
        let most = Number::Float(if is_positive { most } else { -most });
        match self {
            Comparison::Equal => Compared::Same(false),
            Comparison::NotEqual => Compared::Same(true),
            Comparison::Less | Comparison::LessEqual => {
                let op = if is_positive { Comparison::LessEqual } else { Comparison::Less };
                Compared::With(op, most)
            }
            Comparison::Greater | Comparison::GreaterEqual => {
                let op = if is_positive { Comparison::Greater } else { Comparison::GreaterEqual };
                Compared::With(op, most)
            }
        }
    }

    /// Returns whether the comparison is true for an element that is less than the number.
    fn is_true_of_less(self) -> bool {
        matches!(self, Comparison::NotEqual | Comparison::Less | Comparison::LessEqual)
    }

    /// Returns whether the comparison is true for an element that is greater than the number.
    fn is_true_of_greater(self) -> bool {
        matches!(self, Comparison::NotEqual | Comparison::Greater | Comparison::GreaterEqual)
    }
}

/// The second operand of an operation. The caller has checked that both operands have the same
/// type.
pub(crate) enum Side {
    Number(Number),
    Array(Window),
}

enum Other<T> {
    Number(T),
    Array(SharedArray<T, IxDyn>),
}

impl Side {
    fn typed<T: Native>(&self) -> Result<Other<T>, Error> {
        Ok(match self {
            Side::Number(number) => Other::Number(T::from_number(*number).unwrap_or_default()),
            Side::Array(window) => Other::Array(window.typed::<T>()?),
        })
    }
}

/// Returns `left op right` as a new window.
pub(crate) fn arithmetic(op: Op, left: &Window, right: &Side) -> Result<Window, Error> {
    fn run<T: Native + Num>(op: Op, left: &Window, right: &Side) -> Result<Window, Error> {
        let left = &left.typed::<T>()?;
        let made: DeviceArray<T, IxDyn> = match (op, right.typed::<T>()?) {
            (Op::Add, Other::Number(right)) => left + right,
            (Op::Add, Other::Array(right)) => left + &right,
            (Op::Subtract, Other::Number(right)) => left - right,
            (Op::Subtract, Other::Array(right)) => left - &right,
            (Op::Multiply, Other::Number(right)) => left * right,
            (Op::Multiply, Other::Array(right)) => left * &right,
            (Op::Divide, Other::Number(right)) => left / right,
            (Op::Divide, Other::Array(right)) => left / &right,
        }?;
        Window::from_array(made)
    }
    with_kind!(left.kind, number T => run::<T>(op, left, right))
}

/// Returns `left op right` as a new window. The left side is a number.
pub(crate) fn from_number(op: Op, left: Number, right: &Window) -> Result<Window, Error> {
    fn run<T: Native + Num>(op: Op, left: Number, right: &Window) -> Result<Window, Error> {
        let (left, right) = (T::from_number(left).unwrap_or_default(), &right.typed::<T>()?);
        Window::from_array(match op {
            Op::Add => right.try_add(left),
            Op::Subtract => right.try_sub_from(left),
            Op::Multiply => right.try_mul(left),
            Op::Divide => right.try_div_into(left),
        }?)
    }
    with_kind!(right.kind, number T => run::<T>(op, left, right))
}

/// Writes `left op right` to the left side.
pub(crate) fn in_place(op: Op, left: &Window, right: &Side) -> Result<(), Error> {
    fn run<T: Native + Num>(op: Op, left: &Window, right: &Side) -> Result<(), Error> {
        let left = left.typed::<T>()?;
        let mut left = left.view_mut_shared();
        match (op, right.typed::<T>()?) {
            (Op::Add, Other::Number(right)) => left.add_assign(right),
            (Op::Add, Other::Array(right)) => left.add_assign(&right),
            (Op::Subtract, Other::Number(right)) => left.sub_assign(right),
            (Op::Subtract, Other::Array(right)) => left.sub_assign(&right),
            (Op::Multiply, Other::Number(right)) => left.mul_assign(right),
            (Op::Multiply, Other::Array(right)) => left.mul_assign(&right),
            (Op::Divide, Other::Number(right)) => left.div_assign(right),
            (Op::Divide, Other::Array(right)) => left.div_assign(&right),
        }
    }
    let copy;
    let right = match right {
        // The two arrays share memory but are different views. Read a copy of the right array,
        // because writes to the left array would change the right array.
        Side::Array(source) if source.shares(left) && !source.is_same(left) => {
            copy = Side::Array(copied(source, None)?);
            &copy
        }
        right => right,
    };
    with_kind!(left.kind, number T => run::<T>(op, left, right))
}

/// Compares elements with a number of any type, by value. Returns a mask.
pub(crate) fn compare_number(
    op: Comparison,
    left: &Window,
    right: Number,
) -> Result<Window, Error> {
    match op.against(left.kind, right) {
        Compared::With(op, number) => compare(op, left, &Side::Number(number)),
        Compared::Same(answer) => {
            let target = left.raw()?.target();
            filled(&target, &left.shape, Kind::Bool, Number::Bool(answer))
        }
    }
}

/// Compares two sides. Returns a mask.
pub(crate) fn compare(op: Comparison, left: &Window, right: &Side) -> Result<Window, Error> {
    fn with<T: Native + Num, R: gpuheap::Operand<T, IxDyn, Dim = IxDyn>>(
        op: Comparison,
        left: &SharedArray<T, IxDyn>,
        right: R,
    ) -> Result<DeviceArray<bool, IxDyn>, Error> {
        match op {
            Comparison::Equal => left.equal(right),
            Comparison::NotEqual => left.not_equal(right),
            Comparison::Less => left.less(right),
            Comparison::LessEqual => left.less_equal(right),
            Comparison::Greater => left.greater(right),
            Comparison::GreaterEqual => left.greater_equal(right),
        }
    }
    fn run<T: Native + Num>(op: Comparison, left: &Window, right: &Side) -> Result<Window, Error> {
        let left = &left.typed::<T>()?;
        Window::from_array(match right.typed::<T>()? {
            Other::Number(right) => with(op, left, right),
            Other::Array(right) => with(op, left, &right),
        }?)
    }
    with_kind!(left.kind, number T => run::<T>(op, left, right))
}

/// Negates signed elements.
pub(crate) fn negated(window: &Window) -> Result<Window, Error> {
    fn run<T: Native + Signed>(window: &Window) -> Result<Window, Error> {
        Window::from_array(window.typed::<T>()?.try_neg()?)
    }
    match window.kind {
        Kind::I8 | Kind::U8 | Kind::Bool => run::<i8>(window),
        Kind::I16 | Kind::U16 => run::<i16>(window),
        Kind::I32 | Kind::U32 => run::<i32>(window),
        Kind::I64 | Kind::U64 => run::<i64>(window),
        Kind::F32 => run::<f32>(window),
        Kind::F64 => run::<f64>(window),
    }
}

pub(crate) fn inverted(mask: &Window) -> Result<Window, Error> {
    Window::from_array(mask.typed::<bool>()?.try_not()?)
}

/// Converts the elements to the type `to`.
pub(crate) fn cast(window: &Window, to: Kind) -> Result<Window, Error> {
    fn run<T: Native>(window: &Window, to: Kind) -> Result<Window, Error> {
        let from = window.typed::<T>()?;
        with_kind!(to, U => Window::from_array(from.cast::<U>()?))
    }
    with_kind!(window.kind, T => run::<T>(window, to))
}

/// A reduction over elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Sum,
    Mean,
    Min,
    Max,
}

/// Reduces the elements along an axis.
pub(crate) fn reduce_axis(op: Reduction, window: &Window, axis: usize) -> Result<Window, Error> {
    fn run<T: Native<Sum: Native, Mean: Native>>(
        op: Reduction,
        window: &Window,
        axis: usize,
    ) -> Result<Window, Error> {
        let array = window.typed::<T>()?;
        match op {
            Reduction::Sum => Window::from_array(array.sum_axis(axis)?),
            _ => Window::from_array(array.mean_axis(axis)?),
        }
    }
    fn extreme<T: Native + Num>(
        op: Reduction,
        window: &Window,
        axis: usize,
    ) -> Result<Window, Error> {
        let array = window.typed::<T>()?;
        Window::from_array(match op {
            Reduction::Min => array.min_axis(axis),
            _ => array.max_axis(axis),
        }?)
    }
    match op {
        Reduction::Sum | Reduction::Mean => {
            with_kind!(window.kind, T => run::<T>(op, window, axis))
        }
        Reduction::Min | Reduction::Max => {
            with_kind!(window.kind, number T => extreme::<T>(op, window, axis))
        }
    }
}

/// Returns whether all elements of a mask are true. Without `all`, returns whether any is true.
pub(crate) fn reduce_mask(
    py: Python<'_>,
    owner: &Owner,
    mask: &Window,
    all: bool,
) -> PyResult<bool> {
    owner.work(py, || {
        let mask = mask.typed::<bool>()?;
        if all { mask.all() } else { mask.any() }
    })
}

/// An operation on groups of rows. It computes sums, means, or counts of the keys.
#[derive(Clone, Copy)]
pub(crate) enum ByKey<'a> {
    Sum(&'a Window),
    Mean(&'a Window),
    Count,
}

/// Groups rows by their keys.
pub(crate) fn by_key(what: ByKey<'_>, keys: &Window, groups: usize) -> Result<Window, Error> {
    fn run<T: Native<Sum: Native, Mean: Native>, K: Native + Key>(
        values: &Window,
        is_mean: bool,
        keys: &SharedArray<K>,
        groups: usize,
    ) -> Result<Window, Error> {
        let values = values.typed::<T>()?;
        if is_mean {
            Window::from_array(values.mean_by_key(keys, groups)?)
        } else {
            Window::from_array(values.sum_by_key(keys, groups)?)
        }
    }
    fn keyed<K: Native + Key>(
        what: ByKey<'_>,
        keys: &Window,
        groups: usize,
    ) -> Result<Window, Error> {
        let keys = &keys.row::<K>()?;
        match what {
            ByKey::Sum(values) => {
                with_kind!(values.kind, T => run::<T, K>(values, false, keys, groups))
            }
            ByKey::Mean(values) => {
                with_kind!(values.kind, T => run::<T, K>(values, true, keys, groups))
            }
            ByKey::Count => {
                Window::from_array(keys.count_by_key(groups)?.into_shape(IxDyn(&[groups]))?)
            }
        }
    }
    // Only four key types are compiled for each element type. Widen keys of other types first.
    match keys.kind {
        Kind::I8 | Kind::I16 => keyed::<i32>(what, &cast(keys, Kind::I32)?, groups),
        Kind::U16 => keyed::<u32>(what, &cast(keys, Kind::U32)?, groups),
        Kind::I32 => keyed::<i32>(what, keys, groups),
        Kind::U8 | Kind::Bool => keyed::<u8>(what, keys, groups),
        Kind::U32 => keyed::<u32>(what, keys, groups),
        Kind::U64 => keyed::<u64>(what, keys, groups),
        Kind::I64 => keyed::<i64>(what, keys, groups),
        Kind::F32 | Kind::F64 => keyed::<i64>(what, &cast(keys, Kind::I64)?, groups),
    }
}

/// An aggregate of the values of each group. Missing values are left out.
#[derive(Clone, Copy)]
pub(crate) enum Fold<'a> {
    Count,
    Sum,
    Min,
    Max,
    /// Squared distances from these means.
    Squares(&'a Window),
}

/// Aggregates a column by keys of `uint32`. `valid` has a bit for each row. Rows with a key outside
/// of `0..groups` are left out.
pub(crate) fn fold(
    fold: Fold<'_>,
    values: &Window,
    keys: &Window,
    groups: usize,
    valid: Option<&Window>,
) -> Result<Window, Error> {
    fn extreme<T: Native + Num>(
        is_least: bool,
        rows: &GroupedRows<'_, Shared>,
        values: &Window,
    ) -> Result<DeviceArray<T>, Error> {
        let values = values.row::<T>()?;
        if is_least { rows.min(&values) } else { rows.max(&values) }
    }
    fn finish<T: Native>(made: DeviceArray<T>) -> Result<Window, Error> {
        let groups = made.len();
        Window::from_array(made.into_shape(IxDyn(&[groups]))?)
    }
    let (keys, bits) = (keys.row::<u32>()?, valid.map(Window::row::<u8>).transpose()?);
    let mut rows = GroupedRows::new(&keys, groups);
    if let Some(bits) = &bits {
        rows = rows.valid(bits)?;
    }
    match fold {
        Fold::Count => with_kind!(values.kind, T => finish(rows.count(&values.row::<T>()?)?)),
        Fold::Sum => with_kind!(values.kind, T => finish(rows.sum(&values.row::<T>()?)?)),
        Fold::Min => {
            with_kind!(values.kind, number T => finish(extreme::<T>(true, &rows, values)?))
        }
        Fold::Max => {
            with_kind!(values.kind, number T => finish(extreme::<T>(false, &rows, values)?))
        }
        Fold::Squares(means) => {
            let means = means.row::<f64>()?;
            with_kind!(values.kind, T => finish(rows.squares(&values.row::<T>()?, &means)?))
        }
    }
}

/// Copies the elements at `indices`, an array of `uint32`. An index out of range gives 0.
pub(crate) fn take(values: &Window, indices: &Window) -> Result<Window, Error> {
    let (indices, count) = (indices.row::<u32>()?, indices.len());
    let made = with_size!(values.kind, T => {
        Window::from_array(values.row::<T>()?.take(&indices)?.into_shape(IxDyn(&[count]))?)
    })?;
    Ok(made.read_as(values.kind))
}

/// Returns whether all elements of an array of floats are whole numbers.
pub(crate) fn are_whole(floats: &Window) -> Result<bool, Error> {
    let back = cast(&cast(floats, Kind::I64)?, floats.kind)?;
    compare(Comparison::Equal, floats, &Side::Array(back))?.typed::<bool>()?.all()
}

/// Distinct keys in ascending order with NaN last. Each row has the index of its key in this order.
pub(crate) struct Distinct {
    /// Bytes of the keys.
    pub(crate) keys: Vec<u8>,
    pub(crate) count: usize,
    /// Bytes of one `uint64` for each row.
    pub(crate) numbers: Vec<u8>,
}

/// Finds the distinct keys in the bytes of elements. Returns `None` if the host has no memory for
/// the result. All NaN are one key. 0 and -0 are one key too.
pub(crate) fn distinct(bytes: &[u8], kind: Kind) -> Option<Distinct> {
    fn run<T: Native + Num>(bytes: &[u8]) -> Option<Distinct> {
        let order = |left: &T, right: &T| {
            let is_nan = |key: &T| key.partial_cmp(key).is_none();
            left.partial_cmp(right).unwrap_or_else(|| is_nan(left).cmp(&is_nan(right)))
        };
        let rows = bytes.len() / size_of::<T>();
        let (mut sorted, mut numbers, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        sorted.try_reserve_exact(rows).ok()?;
        let elements = bytes.chunks_exact(size_of::<T>()).map(T::get);
        sorted.extend(elements.enumerate().map(|(row, key)| (key, row)));
        sorted.sort_unstable_by(|(left, _), (right, _)| order(left, right));
        numbers.try_reserve_exact(rows * size_of::<u64>()).ok()?;
        numbers.resize(rows * size_of::<u64>(), 0);
        let (mut count, mut last) = (0_u64, None);
        for (key, row) in sorted {
            if last.is_none_or(|last| order(&last, &key).is_ne()) {
                keys.try_reserve(size_of::<T>()).ok()?;
                key.put(&mut keys);
                (count, last) = (count + 1, Some(key));
            }
            let at = row * size_of::<u64>();
            numbers[at..at + size_of::<u64>()].copy_from_slice(&(count - 1).to_ne_bytes());
        }
        Some(Distinct { keys, count: count as usize, numbers })
    }
    with_kind!(kind, number T => run::<T>(bytes))
}

/// Makes an array with every element set to a number.
pub(crate) fn filled(
    target: &Target,
    shape: &[usize],
    kind: Kind,
    value: Number,
) -> Result<Window, Error> {
    with_kind!(kind, T => {
        Window::from_array(target.filled(IxDyn(shape), T::from_number(value).unwrap_or_default())?)
    })
}

/// Sets every element to a number.
pub(crate) fn fill(window: &Window, value: Number) -> Result<(), Error> {
    with_kind!(window.kind, T => {
        window.row::<T>()?.view_mut_shared().fill(T::from_number(value).unwrap_or_default())
    })
}

/// Copies a window to `target`. Without a target, the copy has the heap and stream of the window.
pub(crate) fn copied(window: &Window, target: Option<&Target>) -> Result<Window, Error> {
    let raw = window.raw()?;
    let copy = match target {
        Some(target) => raw.copy_to(target)?,
        None => raw.copy()?,
    };
    Ok(Window::from_bytes(copy, window.shape.clone(), window.kind))
}

/// Copies a part of a window.
pub(crate) fn copy_part(window: &Window, part: &[SliceInfoElem]) -> Result<Window, Error> {
    let copy = with_size!(window.kind, T => {
        Window::from_array(window.typed::<T>()?.copy_slice(part)?)
    })?;
    Ok(copy.read_as(window.kind))
}

/// Overwrites a part with a number or a window of the same kind. A smaller window is repeated.
pub(crate) fn assign(window: &Window, part: &Part, value: Side) -> Result<(), Error> {
    let source = match (value, part) {
        (Side::Number(number), Part::Window(to)) => return fill(to, number),
        (Side::Number(number), Part::Strided(_)) => {
            let target = window.raw()?.target();
            filled(&target, &[], window.kind, number)?
        }
        (Side::Array(source), Part::Window(to)) if source.is_same(to) => return Ok(()),
        (Side::Array(source), _) if source.shares(window) => copied(&source, None)?,
        (Side::Array(source), _) => source,
    };
    match part {
        Part::Window(to) if to.shape == source.shape => {
            to.raw()?.view_mut_shared().copy_from(&source.raw()?)
        }
        Part::Window(to) => {
            let all = SliceInfoElem::Slice { start: 0, end: None, step: 1 };
            write_part(to, &vec![all; to.shape.len()], &source)
        }
        Part::Strided(part) => write_part(window, part, &source),
    }
}

fn write_part(window: &Window, part: &[SliceInfoElem], source: &Window) -> Result<(), Error> {
    with_size!(window.kind, T => {
        let array = window.typed::<T>()?;
        array.view_mut_shared().write_slice(part, &source.typed::<T>()?)
    })
}

/// Copies a window with its axes in another order. Without `axes`, the order is reversed.
pub(crate) fn transposed(window: &Window, axes: Option<&[usize]>) -> Result<Window, Error> {
    let copy = with_size!(window.kind, T => {
        let array = window.typed::<T>()?;
        Window::from_array(match axes {
            Some(axes) => array.copy_permuted(axes)?,
            None => array.copy_transposed()?,
        })
    })?;
    Ok(copy.read_as(window.kind))
}

/// Copies a window and repeats it to fill a larger shape.
pub(crate) fn broadcast(window: &Window, shape: &[usize]) -> Result<Window, Error> {
    let copy = with_size!(window.kind, T => {
        Window::from_array(window.typed::<T>()?.broadcast_to(IxDyn(shape))?)
    })?;
    Ok(copy.read_as(window.kind))
}

/// Downloads the bytes of the elements. Waits for the GPU.
pub(crate) fn bytes(py: Python<'_>, owner: &Owner, window: &Window) -> PyResult<Vec<u8>> {
    owner.work(py, || window.raw()?.to_vec())
}

/// Uploads bytes and returns their window.
pub(crate) fn upload(
    py: Python<'_>,
    owner: &Owner,
    target: &Target,
    bytes: &[u8],
    shape: Vec<usize>,
    kind: Kind,
) -> PyResult<Window> {
    let array = owner.make(py, || target.array(bytes))?;
    Ok(Window::from_bytes(array, shape, kind))
}
