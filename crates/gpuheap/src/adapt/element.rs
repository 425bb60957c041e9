//! Elements of arrays, and the conversion of their types.

use num_complex::Complex;

use crate::array::Element;

/// An array element that [`cu`](crate::Target::cu) and [`narrow`](crate::Target::narrow) can
/// convert. Numbers, `bool`, `char` and arrays of these are `Plain`. A struct of the program
/// derives [`Adapt`](macro@crate::Adapt) with `#[adapt(element)]`; `cu` and `narrow` leave it
/// unchanged.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an element of an array that is adapted",
    note = "numbers, `bool`, `char` and arrays of them can; a struct of plain data derives `gpuheap::Adapt` with `#[adapt(element)]`"
)]
pub trait Plain: Element {
    /// Type of the element after `cu`.
    type Cu: Element;
    /// Type of the element after `narrow`.
    type Narrow: Element;

    /// Converts the element as [`cu`](crate::Target::cu) does, to the nearest value.
    fn cu(self) -> Self::Cu;

    /// Converts the element as [`narrow`](crate::Target::narrow) does, to the nearest value.
    fn narrow(self) -> Self::Narrow;
}

/// A conversion of element types during an upload: [`Same`], [`Cu`] or [`Narrow`].
pub trait ElementRule: 'static {
    /// Type that `T` is converted to.
    type Of<T: Plain>: Element;

    /// Converts an element.
    fn convert<T: Plain>(element: T) -> Self::Of<T>;
}

/// No conversion: elements keep their type.
pub enum Same {}

/// Conversion of numbers to `f32`, and of complex numbers to `Complex<f32>`.
pub enum Cu {}

/// Conversion of 64-bit floats to 32 bits.
pub enum Narrow {}

macro_rules! rules {
    ($($rule:ident: $to:ty, |$element:ident| $convert:expr;)*) => {
        $(
            impl ElementRule for $rule {
                type Of<T: Plain> = $to;

                fn convert<T: Plain>($element: T) -> $to {
                    $convert
                }
            }
        )*
    };
}

rules! {
    Same: T, |element| element;
    Cu: T::Cu, |element| element.cu();
    Narrow: T::Narrow, |element| element.narrow();
}

macro_rules! plain {
    ($($of:ty: $cu:ty, $narrow:ty, $to_cu:expr, $to_narrow:expr;)*) => {
        $(
            impl Plain for $of {
                type Cu = $cu;
                type Narrow = $narrow;

                fn cu(self) -> $cu {
                    let convert: fn($of) -> $cu = $to_cu;
                    convert(self)
                }

                fn narrow(self) -> $narrow {
                    let convert: fn($of) -> $narrow = $to_narrow;
                    convert(self)
                }
            }
        )*
    };
}

/// Integers and complex integers.
macro_rules! integers {
    ($($integer:ty)*) => {
        plain! {
            $(
                $integer: f32, $integer, |of| of as f32, |of| of;
                Complex<$integer>: Complex<f32>, Complex<$integer>,
                    |of| Complex::new(of.re as f32, of.im as f32), |of| of;
            )*
        }
    };
}

integers! { i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize }

plain! {
    bool: bool, bool, |of| of, |of| of;
    char: char, char, |of| of, |of| of;
    f32: f32, f32, |of| of, |of| of;
    f64: f32, f32, |of| of as f32, |of| of as f32;
    Complex<f32>: Complex<f32>, Complex<f32>, |of| of, |of| of;
    Complex<f64>: Complex<f32>, Complex<f32>, narrowed, narrowed;
}

#[cfg(feature = "half")]
plain! {
    half::f16: f32, half::f16, half::f16::to_f32, |of| of;
    half::bf16: f32, half::bf16, half::bf16::to_f32, |of| of;
    Complex<half::f16>: Complex<f32>, Complex<half::f16>,
        |of| Complex::new(of.re.to_f32(), of.im.to_f32()), |of| of;
    Complex<half::bf16>: Complex<f32>, Complex<half::bf16>,
        |of| Complex::new(of.re.to_f32(), of.im.to_f32()), |of| of;
}

fn narrowed(of: Complex<f64>) -> Complex<f32> {
    Complex::new(of.re as f32, of.im as f32)
}

impl<T: Plain, const N: usize> Plain for [T; N]
where
    [T; N]: Element,
    [T::Cu; N]: Element,
    [T::Narrow; N]: Element,
{
    type Cu = [T::Cu; N];
    type Narrow = [T::Narrow; N];

    fn cu(self) -> [T::Cu; N] {
        self.map(T::cu)
    }

    fn narrow(self) -> [T::Narrow; N] {
        self.map(T::narrow)
    }
}
