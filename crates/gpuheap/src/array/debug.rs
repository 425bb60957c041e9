//! What an array looks like when it is printed.

use std::fmt;

use ndarray::Dimension;

use super::{ArrayBase, Element, Hold};

impl<S: Hold, T: Element + fmt::Debug, D: Dimension> fmt::Debug for ArrayBase<S, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.shape(), self.kind())
    }
}
