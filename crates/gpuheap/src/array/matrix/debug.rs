//! Debug output of matrices: the matrix that the wrapper denotes, not the stored elements.

use std::fmt;

use ndarray::{Data, Dimension};

use super::{Diagonal, LowerTriangular, Symmetric, Transposed, Triangle, UpperTriangular};
use crate::array::debug::{head, short, show, shown};
use crate::array::{ArrayBase, ArrayData, Element};
use crate::error::{Error, ErrorKind};

/// Content of a wrapper such as [`Diagonal`] whose elements can be printed: arrays and views of
/// gpuheap and of `ndarray`, vectors, other wrappers, and references to these.
#[diagnostic::on_unimplemented(
    message = "a matrix of `{Self}` cannot be printed",
    note = "wrap an array of gpuheap or of `ndarray`, a `Vec`, or a reference to one"
)]
pub trait Printed: sealed::Printed {}

#[diagnostic::do_not_recommend]
impl<A: sealed::Printed> Printed for A {}

mod sealed {
    use std::fmt;

    use super::Corner;
    use crate::error::Error;

    pub trait Printed: fmt::Debug {
        type Element: fmt::Debug + Clone;

        /// Returns type, shape and place.
        fn name(&self) -> String;

        /// Returns the lengths of the axes of the matrix; `None` if the shape denotes no matrix.
        fn axes(&self) -> Option<Vec<usize>>;

        fn was_freed(&self) -> bool;

        /// Returns the first columns of the first rows, row by row; of one axis, the first elements
        /// of the only row. An element is `None` for a zero that is not stored.
        fn corner(&self, rows: usize, columns: usize) -> Result<Corner<Self::Element>, Error>;
    }
}

use sealed::Printed as _;

type Corner<T> = Vec<Option<T>>;

impl<S: ArrayData, T: Element + fmt::Debug, D: Dimension> sealed::Printed for ArrayBase<S, T, D> {
    type Element = T;

    fn name(&self) -> String {
        head(S::NAME, self)
    }

    fn axes(&self) -> Option<Vec<usize>> {
        Some(self.shape().to_vec())
    }

    fn was_freed(&self) -> bool {
        self.is_freed()
    }

    fn corner(&self, rows: usize, columns: usize) -> Result<Corner<T>, Error> {
        let stride = self.shape().last().copied().unwrap_or(1);
        if columns > stride || rows.checked_mul(stride).is_none_or(|end| end > self.len()) {
            return Err(ErrorKind::WrongShape.error(format!(
                "the array of shape {:?} has no corner of {rows} by {columns}",
                self.shape()
            )));
        }
        let starts = (0..rows).map(|row| row * stride);
        let elements = self.ranges(starts.map(|start| start..start + columns))?;
        Ok(elements.into_iter().map(Some).collect())
    }
}

impl<T, S, D> sealed::Printed for ndarray::ArrayBase<S, D>
where
    T: fmt::Debug + Clone,
    S: Data<Elem = T>,
    D: Dimension,
{
    type Element = T;

    fn name(&self) -> String {
        format!("Array<{}>({:?})", short(std::any::type_name::<T>()), self.shape())
    }

    fn axes(&self) -> Option<Vec<usize>> {
        Some(self.shape().to_vec())
    }

    fn was_freed(&self) -> bool {
        false
    }

    fn corner(&self, rows: usize, columns: usize) -> Result<Corner<T>, Error> {
        let rows = self.rows().into_iter().take(rows);
        Ok(rows.flat_map(|row| row.into_iter().take(columns)).cloned().map(Some).collect())
    }
}

impl<T: fmt::Debug + Clone> sealed::Printed for Vec<T> {
    type Element = T;

    fn name(&self) -> String {
        format!("Vec<{}>([{}])", short(std::any::type_name::<T>()), self.len())
    }

    fn axes(&self) -> Option<Vec<usize>> {
        Some(vec![self.len()])
    }

    fn was_freed(&self) -> bool {
        false
    }

    fn corner(&self, _: usize, columns: usize) -> Result<Corner<T>, Error> {
        Ok(self.iter().take(columns).cloned().map(Some).collect())
    }
}

impl<A: sealed::Printed + ?Sized> sealed::Printed for &A {
    type Element = A::Element;

    fn name(&self) -> String {
        (**self).name()
    }

    fn axes(&self) -> Option<Vec<usize>> {
        (**self).axes()
    }

    fn was_freed(&self) -> bool {
        (**self).was_freed()
    }

    fn corner(&self, rows: usize, columns: usize) -> Result<Corner<A::Element>, Error> {
        (**self).corner(rows, columns)
    }
}

/// Debug output of a wrapper, from the axes of its matrix and a corner of it.
macro_rules! printed {
    ($wrapper:ident.$inner:tt, $axes:expr, $corner:expr) => {
        /// Shows the first elements of the matrix, at most 6 rows of 8, with `⋅` for a zero that is
        /// not stored. If the shape denotes no matrix, shows the content instead. Never fails.
        /// Reads less than 100 KiB, for which it waits for the array's last use. Width and
        /// precision apply to the elements.
        impl<A: Printed> fmt::Debug for $wrapper<A> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.axes() {
                    Some(axes) => print(self, &axes, f),
                    None => {
                        f.write_str(concat!(stringify!($wrapper), "("))?;
                        self.$inner.fmt(f)?;
                        f.write_str(")")
                    }
                }
            }
        }

        impl<A: Printed> sealed::Printed for $wrapper<A> {
            type Element = A::Element;

            fn name(&self) -> String {
                format!(concat!(stringify!($wrapper), "({})"), self.$inner.name())
            }

            fn axes(&self) -> Option<Vec<usize>> {
                let axes: fn(&[usize]) -> Option<[usize; 2]> = $axes;
                axes(&self.$inner.axes()?).map(Vec::from)
            }

            fn was_freed(&self) -> bool {
                self.$inner.was_freed()
            }

            fn corner(&self, rows: usize, columns: usize) -> Result<Corner<A::Element>, Error> {
                let corner: fn(&Self, usize, usize) -> Result<Corner<A::Element>, Error> = $corner;
                corner(self, rows, columns)
            }
        }
    };
}

printed!(
    Diagonal.0,
    |axes| match axes {
        [length] => Some([*length, *length]),
        _ => None,
    },
    |this, rows, columns| {
        let diagonal = this.0.corner(1, rows.min(columns))?;
        Ok(corner(rows, columns, |row, column| (row == column).then_some(row), &diagonal))
    }
);

printed!(UpperTriangular.0, matrix, |this, rows, columns| {
    let at = |row, column| (row <= column).then_some(row * columns + column);
    Ok(corner(rows, columns, at, &this.0.corner(rows, columns)?))
});

printed!(LowerTriangular.0, matrix, |this, rows, columns| {
    let at = |row, column| (row >= column).then_some(row * columns + column);
    Ok(corner(rows, columns, at, &this.0.corner(rows, columns)?))
});

printed!(
    Symmetric.matrix,
    |axes| matrix(axes).filter(|[rows, columns]| rows == columns),
    |this, rows, columns| {
        let side = rows.max(columns);
        let at = |row: usize, column: usize| {
            let (least, most) = (row.min(column), row.max(column));
            Some(match this.from {
                Triangle::Upper => least * side + most,
                Triangle::Lower => most * side + least,
            })
        };
        Ok(corner(rows, columns, at, &this.matrix.corner(side, side)?))
    }
);

printed!(
    Transposed.0,
    |axes| match axes {
        [length] => Some([1, *length]),
        _ => matrix(axes).map(|[rows, columns]| [columns, rows]),
    },
    |this, rows, columns| {
        if this.0.axes().is_some_and(|axes| axes.len() == 1) {
            return this.0.corner(rows, columns);
        }
        let at = |row, column| Some(column * rows + row);
        Ok(corner(rows, columns, at, &this.0.corner(columns, rows)?))
    }
);

fn matrix(axes: &[usize]) -> Option<[usize; 2]> {
    axes.try_into().ok()
}

/// Returns the corner whose elements are `at` their indices in `stored`.
fn corner<T: Clone>(
    rows: usize,
    columns: usize,
    at: impl Fn(usize, usize) -> Option<usize>,
    stored: &[Option<T>],
) -> Corner<T> {
    let element = |place| at(place / columns, place % columns).and_then(|at| stored.get(at));
    (0..rows * columns).map(|place| element(place).cloned().flatten()).collect()
}

fn print<M: sealed::Printed>(
    matrix: &M,
    axes: &[usize],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    f.write_str(&matrix.name())?;
    if matrix.was_freed() {
        return f.write_str(" freed");
    }
    if axes.contains(&0) {
        return f.write_str(" []");
    }
    let shown = shown::<M::Element>(axes);
    let [rows, columns] = shown[..] else { return Ok(()) };
    match matrix.corner(rows, columns) {
        Ok(corner) => {
            f.write_str("\n")?;
            let entries: Vec<Entry<M::Element>> = corner.into_iter().map(Entry).collect();
            show(f, &mut entries.iter(), axes, &shown, 0)
        }
        // Another thread may have freed the array meanwhile.
        Err(error) if error.is_freed() => f.write_str(" freed"),
        Err(error) => write!(f, " unreadable: {error}"),
    }
}

struct Entry<T>(Option<T>);

impl<T: fmt::Debug> fmt::Debug for Entry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(element) => element.fmt(f),
            None => write!(f, "{:>1$}", "⋅", f.width().unwrap_or(0)),
        }
    }
}
