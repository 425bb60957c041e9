//! Describes a convolution's tensors, and computes the figures that determine its workspace.

/// Tensor of a graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shape {
    /// Size of an element, in bytes.
    pub(crate) element: u64,
    /// Number of samples, number of channels, and the spatial sizes.
    pub(crate) sizes: Vec<u64>,
    /// `true` if there are several positions, and the channels of a position are adjacent in
    /// memory.
    channels_last: bool,
    /// `true` for half precision; `false` for bfloat16.
    pub(crate) is_half: bool,
}

/// Stride, padding and dilation of a convolution, with one number per dimension.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Window {
    pub(crate) stride: Vec<u64>,
    pub(crate) padding: Vec<u64>,
    pub(crate) dilation: Vec<u64>,
}

/// The tensor that a convolution computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// The output `y`.
    Forward,
    /// The gradient of the input `x`. In a transposed convolution, the forward pass computes this
    /// gradient.
    Input,
    /// The gradient of the filter `w`.
    Filter,
}

/// Convolution of the input `x` with the filter `w`, to the output `y`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Convolution {
    pub(crate) pass: Pass,
    pub(crate) x: Shape,
    pub(crate) w: Shape,
    pub(crate) y: Shape,
    pub(crate) window: Window,
    /// `true` if the channels of a position are adjacent in memory.
    pub(crate) channels_last: bool,
}

/// Bytes of the input, the filter and the output.
pub(crate) type Bytes = [u64; 3];

/// Number of multiprocessors of an H200. cuDNN splits work among them.
const MULTIPROCESSORS: u64 = 132;

/// Maximum of each size, so that sums of a few sizes do not overflow. No device has enough memory
/// for a larger tensor.
const LARGEST: u64 = 1 << 40;

/// Returns the product, or `u64::MAX` if the product is larger.
pub(crate) fn product<'a>(numbers: impl IntoIterator<Item = &'a u64>) -> u64 {
    numbers.into_iter().fold(1, |all, &number| all.saturating_mul(number))
}

/// Returns the largest power of two, at most 16, that divides `number`.
fn alignment(number: u64) -> u64 {
    1 << number.trailing_zeros().min(4)
}

impl Shape {
    pub(crate) fn new(element: u64, mut sizes: Vec<u64>, strides: &[i64]) -> Self {
        sizes.iter_mut().for_each(|size| *size = (*size).min(LARGEST));
        let mut shape = Self { element, sizes, channels_last: false, is_half: false };
        shape.channels_last = strides.get(1) == Some(&1) && product(shape.positions()) > 1;
        shape
    }

    pub(crate) fn elements(&self) -> u64 {
        product(&self.sizes)
    }

    pub(crate) fn samples(&self) -> u64 {
        self.sizes.first().copied().unwrap_or(1)
    }

    pub(crate) fn channels(&self) -> u64 {
        self.sizes.get(1).copied().unwrap_or(1).max(1)
    }

    /// Returns the sizes of the positions.
    pub(crate) fn positions(&self) -> &[u64] {
        self.sizes.get(2..).unwrap_or(&[])
    }
}

impl Convolution {
    pub(crate) fn new(pass: Pass, [x, w, y]: [Shape; 3], mut window: Window) -> Self {
        for numbers in [&mut window.stride, &mut window.padding, &mut window.dilation] {
            numbers.iter_mut().for_each(|number| *number = (*number).min(LARGEST));
        }
        let channels_last = x.channels_last || y.channels_last;
        Self { pass, x, w, y, window, channels_last }
    }

    /// Returns `true` if cuDNN offers a plan whose kernel spills registers. Such convolutions are
    /// depthwise, and compute the gradient of a 5 x 5 filter in half precision.
    pub(crate) fn spills(&self) -> bool {
        const CHANNELS: u64 = 32;
        self.pass == Pass::Filter
            && self.x.is_half
            && !self.channels_last
            && self.x.channels() >= CHANNELS
            && self.groups() == self.x.channels()
            && self.w.positions() == [5, 5]
            && product(&self.window.stride) == 1
    }

    pub(crate) fn groups(&self) -> u64 {
        (self.x.channels() / self.w.channels()).max(1)
    }

    /// Returns the number of output channels of a group.
    fn outputs(&self) -> u64 {
        self.y.channels() / self.groups()
    }

    /// Returns the number of positions in the filter.
    pub(crate) fn taps(&self) -> u64 {
        product(self.w.positions())
    }

    /// Rounds the channels of each group up to a multiple of `channels`, as tensor cores require.
    /// Returns the sizes of the tensors, in bytes.
    pub(crate) fn padded(&self, channels: u64) -> Bytes {
        let (c, k) = (self.w.channels(), self.outputs().max(1));
        let (wide_c, wide_k) = (c.next_multiple_of(channels), k.next_multiple_of(channels));
        let scaled = |shape: &Shape, narrow: u64, wide: u64| {
            (shape.elements() / narrow).saturating_mul(wide).saturating_mul(shape.element)
        };
        [
            scaled(&self.x, c, wide_c),
            scaled(&self.w, c.saturating_mul(k), wide_c.saturating_mul(wide_k)),
            scaled(&self.y, k, wide_k),
        ]
    }

    /// Returns the size, in bytes, of a partial result. cuDNN keeps these in 4-byte numbers.
    pub(crate) fn result(&self) -> u64 {
        let result = match self.pass {
            Pass::Forward => self.y.elements(),
            Pass::Input => self.x.elements(),
            Pass::Filter => {
                let element = self.w.element.max(1);
                self.padded(if element == 2 { 8 } else { 4 })[1] / element
            }
        };
        result.saturating_mul(4)
    }

    /// Divides the result into tiles of `rows` by `columns`. Returns the tiles per multiprocessor.
    pub(crate) fn tiles(&self, rows: u64, columns: u64) -> f64 {
        let (c, k) = (self.w.channels(), self.outputs());
        let samples = self.x.samples();
        let (height, width) = match self.pass {
            Pass::Forward => (k, samples.saturating_mul(product(self.y.positions()))),
            Pass::Input => (c, samples.saturating_mul(product(self.x.positions()))),
            Pass::Filter => (k, c.saturating_mul(self.taps())),
        };
        let tiles = height.div_ceil(rows).saturating_mul(width.div_ceil(columns));
        tiles.saturating_mul(self.groups()) as f64 / MULTIPROCESSORS as f64
    }

    /// Returns the figure that `rules.txt` calls `name`, such as `c` for the number of channels.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        let (c, k) = (self.w.channels(), self.outputs());
        let most = |numbers: &[u64]| numbers.iter().copied().max().unwrap_or(0);
        let last = |numbers: &[u64]| numbers.last().copied().unwrap_or(1);
        let positions = product(self.y.positions());
        let span = || {
            let sums = self.y.positions().iter().zip(self.w.positions());
            sums.map(|(&size, &filter)| size.saturating_add(filter).saturating_sub(1)).max()
        };
        let number = match name {
            "n" => self.x.samples(),
            "c" => c,
            "k" => k,
            "g" => self.groups(),
            "w" => last(self.x.positions()),
            "r" => last(self.w.positions()),
            "s" => most(&self.window.stride),
            "p" => most(&self.window.padding),
            "d" => most(&self.window.dilation),
            "dims" => self.x.positions().len() as u64,
            "ca" => alignment(c),
            "ka" => alignment(k),
            "taps" => self.taps(),
            "X" => self.x.elements(),
            "W" => self.w.elements(),
            "Y" => self.y.elements(),
            "M" => self.x.samples().saturating_mul(positions),
            "K" => c.saturating_mul(self.taps()),
            "pos" => positions,
            "posa" => alignment(positions),
            "work" => product(&[2, self.y.elements(), c, self.taps()]),
            "span" => span().unwrap_or(0),
            "same" => u64::from(self.x.positions() == self.y.positions()),
            "t64" => return Some(self.tiles(64, 64)),
            "t128" => return Some(self.tiles(128, 128)),
            _ => return None,
        };
        Some(number as f64)
    }
}
