//! Element types, and single numbers.

use gpuheap::Scalar;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyString, PyType};
use pyo3::{ffi, intern};

/// Maximum number of axes of an array.
pub(crate) const MOST_AXES: usize = 64;

/// Type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
}

/// Runs an expression with `$T` as the Rust type of a kind. In the form `number $T`, the type of
/// `Kind::Bool` is `u8`.
macro_rules! with_kind {
    ($kind:expr, $T:ident => $work:expr) => {
        $crate::kind::with_kind!(@ $kind, bool, $T => $work)
    };
    ($kind:expr, number $T:ident => $work:expr) => {
        $crate::kind::with_kind!(@ $kind, u8, $T => $work)
    };
    (@ $kind:expr, $bool:ty, $T:ident => $work:expr) => {
        $crate::kind::with_kind!(@ $kind, $T => $work; Bool $bool, I8 i8, I16 i16, I32 i32, I64 i64,
            U8 u8, U16 u16, U32 u32, U64 u64, F32 f32, F64 f64)
    };
    (@ $kind:expr, $T:ident => $work:expr; $($name:ident $type:ty),*) => {
        match $kind {
            $($crate::kind::Kind::$name => { type $T = $type; $work })*
        }
    };
}
pub(crate) use with_kind;

/// Runs an expression in which `$T` is the unsigned integer as large as the element type. It serves
/// copies, because a copy needs only the size of the elements.
macro_rules! with_size {
    ($kind:expr, $T:ident => $work:expr) => {
        $crate::kind::with_size!(@ $kind, $T => $work; 1 u8, 2 u16, 4 u32, _ u64)
    };
    (@ $kind:expr, $T:ident => $work:expr; $($size:tt $type:ty),*) => {
        match $kind.size() {
            $($size => { type $T = $type; $work })*
        }
    };
}
pub(crate) use with_size;

/// All kinds in the order of [`Kind`]. An entry has NumPy's name and class letter for the kind.
const KINDS: [(Kind, &str, char); 11] = [
    (Kind::Bool, "bool", 'b'),
    (Kind::I8, "int8", 'i'),
    (Kind::I16, "int16", 'i'),
    (Kind::I32, "int32", 'i'),
    (Kind::I64, "int64", 'i'),
    (Kind::U8, "uint8", 'u'),
    (Kind::U16, "uint16", 'u'),
    (Kind::U32, "uint32", 'u'),
    (Kind::U64, "uint64", 'u'),
    (Kind::F32, "float32", 'f'),
    (Kind::F64, "float64", 'f'),
];

impl Kind {
    /// Returns NumPy's name of the kind.
    pub(crate) fn name(self) -> &'static str {
        KINDS[self as usize].1
    }

    /// Returns the size of an element in bytes.
    pub(crate) fn size(self) -> usize {
        with_kind!(self, T => size_of::<T>())
    }

    /// Returns NumPy's class letter: `b`, `i`, `u` or `f`.
    pub(crate) fn class(self) -> char {
        KINDS[self as usize].2
    }

    /// Returns the type string of the array interface, such as `<f4`.
    pub(crate) fn typestr(self) -> String {
        let order = if self.size() == 1 { '|' } else { '<' };
        format!("{order}{}{}", self.class(), self.size())
    }

    /// Returns the kind with a class letter and a size in bytes.
    pub(crate) fn from_class(class: char, size: usize) -> Option<Kind> {
        let mut kinds = KINDS.iter().map(|(kind, ..)| *kind);
        kinds.find(|kind| kind.class() == class && kind.size() == size)
    }

    /// Returns the kind of a buffer's elements. `format` has the notation of Python's `struct`.
    pub(crate) fn from_format(format: &str, size: usize) -> Option<Kind> {
        let mut letters = format.chars();
        let mut letter = letters.next()?;
        if matches!(letter, '@' | '=' | '<') || (matches!(letter, '>' | '!') && size == 1) {
            letter = letters.next()?;
        }
        let class = match letter {
            '?' => 'b',
            'b' | 'h' | 'i' | 'l' | 'q' | 'n' => 'i',
            'B' | 'H' | 'I' | 'L' | 'Q' | 'N' => 'u',
            'f' | 'd' => 'f',
            _ => return None,
        };
        if letters.next().is_some() { None } else { Kind::from_class(class, size) }
    }

    /// Parses a name: `"float32"`, `"f4"`, `"<f4"`, `"bool"`, `"?"`.
    pub(crate) fn parse(text: &str) -> Option<Kind> {
        let plain = text.trim_start_matches(['<', '=', '|', '@']);
        match plain {
            "?" | "b1" | "bool_" => return Some(Kind::Bool),
            "float" => return Some(Kind::F64),
            "int" => return Some(Kind::I64),
            _ => {}
        }
        if let Some((named, ..)) = KINDS.iter().find(|(_, name, _)| *name == plain) {
            return Some(*named);
        }
        let mut letters = plain.chars();
        let class = letters.next().filter(|class| matches!(class, 'i' | 'u' | 'f'))?;
        Kind::from_class(class, letters.as_str().parse().ok()?)
    }

    /// Reads a `dtype` argument: a name, a Python type, a NumPy type, or a NumPy dtype.
    pub(crate) fn read(given: &Bound<'_, PyAny>) -> PyResult<Kind> {
        let py = given.py();
        let text = if let Ok(text) = given.cast::<PyString>() {
            text.to_string()
        } else if given.is_instance_of::<PyType>() {
            given.getattr(intern!(py, "__name__"))?.to_string()
        } else {
            let named = given.getattr_opt(intern!(py, "str"))?;
            named.as_ref().unwrap_or(given).str()?.to_string()
        };
        Kind::parse(&text).ok_or_else(|| {
            PyTypeError::new_err(format!(
                "the element type {text:?} is none that arrays have; pass \"bool\", \"int8\" to \
                 \"int64\", \"uint8\" to \"uint64\", \"float32\" or \"float64\""
            ))
        })
    }
}

/// A number that Python passed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    Bool(bool),
    Int(i128),
    /// A whole number beyond 128 bits, rounded as Python's `float` rounds. Infinite if it is beyond
    /// the range of floats.
    Wide(f64),
    Float(f64),
}

impl Number {
    /// Reads a real number of Python or NumPy. Returns `None` if the object is not a number.
    pub(crate) fn read(given: &Bound<'_, PyAny>) -> PyResult<Option<Number>> {
        let py = given.py();
        if let Ok(given) = given.cast::<PyBool>() {
            return Ok(Some(Number::Bool(given.is_true())));
        }
        if let Ok(given) = given.cast::<PyFloat>() {
            return Ok(Some(Number::Float(given.value())));
        }
        if given.is_instance_of::<PyInt>() {
            return Number::int(given).map(Some);
        }
        // NumPy's arrays have `__len__`, even arrays without axes. NumPy's numbers lack it.
        if given.hasattr(intern!(py, "__len__"))? {
            return Ok(None);
        }
        if let Some(whole) = read_index(given)? {
            return Number::int(&whole).map(Some);
        }
        if is_complex(given)? {
            return Err(PyTypeError::new_err(format!(
                "{} is a complex number, and arrays have real ones; pass its real part: x.real",
                given.get_type()
            )));
        }
        let name = given.get_type().name()?;
        if matches!(name.to_str()?, "bool" | "bool_") {
            return Ok(Some(Number::Bool(given.is_truthy()?)));
        }
        if given.hasattr(intern!(py, "__float__"))? {
            return Ok(Some(Number::Float(given.extract()?)));
        }
        Ok(None)
    }

    fn int(given: &Bound<'_, PyAny>) -> PyResult<Number> {
        if let Ok(int) = given.extract::<i64>() {
            return Ok(Number::Int(int.into()));
        }
        if let Ok(int) = given.extract::<u64>() {
            return Ok(Number::Int(int.into()));
        }
        if let Ok(int) = given.extract::<i128>() {
            return Ok(Number::Int(int));
        }
        match given.extract::<f64>() {
            Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => {
                let most = if given.lt(0)? { f64::NEG_INFINITY } else { f64::INFINITY };
                Ok(Number::Wide(most))
            }
            value => value.map(Number::Wide),
        }
    }

    /// Returns an error if the number is out of the range of a type.
    pub(crate) fn check(self, kind: Kind) -> PyResult<Number> {
        if with_kind!(kind, T => T::from_number(self).is_some()) {
            return Ok(self);
        }
        let whole = |remedy: &str| {
            PyOverflowError::new_err(format!(
                "the number is out of the range of {}; {remedy}",
                kind.name()
            ))
        };
        Err(match self {
            Number::Int(int) if kind != Kind::Bool => {
                whole(match (i64::try_from(int), u64::try_from(int)) {
                    (Ok(_), _) => "int64 holds it: a.astype(\"int64\")",
                    (_, Ok(_)) => "uint64 holds it: a.astype(\"uint64\")",
                    _ => "float64 holds it, rounded: a.astype(\"float64\")",
                })
            }
            Number::Wide(value) if kind != Kind::Bool => whole(match value.is_finite() {
                true => "float64 holds it, rounded: a.astype(\"float64\")",
                false => "no element type holds it",
            }),
            Number::Int(_) | Number::Wide(_) | Number::Bool(_) => PyTypeError::new_err(format!(
                "the number is no {}; pass one of that type, or convert the array with astype",
                kind.name()
            )),
            Number::Float(value) => PyTypeError::new_err(format!(
                "{value} is no {}; pass a whole number, or convert the array first: \
                 a.astype(\"float64\")",
                kind.name()
            )),
        })
    }
}

/// Returns the whole number of an object with `__index__`. Returns `None` if the object has no
/// `__index__`. An exception of the object's own code is passed on.
pub(crate) fn read_index<'py>(given: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = given.py();
    if given.is_instance_of::<PyInt>() {
        return Ok(Some(given.clone()));
    }
    if !given.hasattr(intern!(py, "__index__"))? {
        return Ok(None);
    }
    // SAFETY: the object is alive, the interpreter's lock is held, and the result is a new object
    // or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyNumber_Index(given.as_ptr())).map(Some) }
}

/// Returns whether an object is a complex number of Python or NumPy.
fn is_complex(given: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = given.py();
    if given.is_instance_of::<PyComplex>() {
        return Ok(true);
    }
    let Some(dtype) = given.getattr_opt(intern!(py, "dtype"))? else { return Ok(false) };
    match dtype.getattr_opt(intern!(py, "kind"))? {
        Some(kind) => kind.eq("c"),
        None => Ok(false),
    }
}

/// A Rust type of elements.
pub(crate) trait Native: Scalar + Default {
    const KIND: Kind;

    /// Converts a number. Returns `None` if it is out of the type's range.
    fn from_number(number: Number) -> Option<Self>;

    /// Reads an element from its bytes.
    fn get(bytes: &[u8]) -> Self;

    /// Appends the bytes of an element.
    fn put(self, bytes: &mut Vec<u8>);

    /// Makes a Python number.
    fn item(self, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

macro_rules! natives {
    ($($of:ty = $kind:ident, $from:expr, $item:ident;)*) => {
        $(
            impl Native for $of {
                const KIND: Kind = Kind::$kind;

                fn from_number(number: Number) -> Option<$of> {
                    let from: fn(Number) -> Option<$of> = $from;
                    from(number)
                }

                fn get(bytes: &[u8]) -> $of {
                    bytes.try_into().map(<$of>::from_ne_bytes).unwrap_or_default()
                }

                fn put(self, bytes: &mut Vec<u8>) {
                    bytes.extend_from_slice(&self.to_ne_bytes());
                }

                fn item(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
                    // `into_py_any` would panic if the host has no memory. SAFETY: the
                    // interpreter's lock is held; the result is a new object or null.
                    unsafe {
                        let item = ffi::$item(self.into());
                        Bound::from_owned_ptr_or_err(py, item).map(Bound::unbind)
                    }
                }
            }
        )*
    };
}

macro_rules! whole {
    () => {
        |number| match number {
            Number::Bool(is) => Some(is.into()),
            Number::Int(int) => int.try_into().ok(),
            Number::Wide(_) | Number::Float(_) => None,
        }
    };
}

macro_rules! real {
    ($of:ty) => {
        |number| match number {
            Number::Bool(is) => Some(u8::from(is).into()),
            Number::Int(int) => Some(int as $of),
            Number::Wide(value) => Some(value as $of).filter(|value| value.is_finite()),
            Number::Float(float) => Some(float as $of),
        }
    };
}

natives! {
    i8 = I8, whole!(), PyLong_FromLongLong;
    i16 = I16, whole!(), PyLong_FromLongLong;
    i32 = I32, whole!(), PyLong_FromLongLong;
    i64 = I64, whole!(), PyLong_FromLongLong;
    u8 = U8, whole!(), PyLong_FromUnsignedLongLong;
    u16 = U16, whole!(), PyLong_FromUnsignedLongLong;
    u32 = U32, whole!(), PyLong_FromUnsignedLongLong;
    u64 = U64, whole!(), PyLong_FromUnsignedLongLong;
    f32 = F32, real!(f32), PyFloat_FromDouble;
    f64 = F64, real!(f64), PyFloat_FromDouble;
}

impl Native for bool {
    const KIND: Kind = Kind::Bool;

    fn from_number(number: Number) -> Option<bool> {
        match number {
            Number::Bool(is) => Some(is),
            Number::Int(int) if int == 0 || int == 1 => Some(int == 1),
            Number::Int(_) | Number::Wide(_) | Number::Float(_) => None,
        }
    }

    fn get(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|byte| *byte != 0)
    }

    fn put(self, bytes: &mut Vec<u8>) {
        bytes.push(self.into());
    }

    fn item(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.into_py_any(py)
    }
}

/// Appends a number to `bytes` as an element of type `kind`. The caller has checked that the number
/// is in range.
pub(crate) fn put(number: Number, kind: Kind, bytes: &mut Vec<u8>) {
    with_kind!(kind, T => T::from_number(number).unwrap_or_default().put(bytes));
}

pub(crate) fn item(py: Python<'_>, kind: Kind, bytes: &[u8]) -> PyResult<Py<PyAny>> {
    with_kind!(kind, T => T::get(bytes).item(py))
}
