//! Size of the workspace of a graph's engine, in bytes. The rules were found by measurement on an
//! H200.
//!
//! The measurements were of 567 convolutions of ResNet-50, a UNet and a vision transformer, in 2-
//! and 4-byte types, and of attention in two shapes. They used cuDNN 9.19 and PyTorch 2.11. For 470
//! convolutions, the rules are within 10 % or 1 MiB. Most of the others have images with 3
//! channels, or compute gradients of filters. Other cards have other engines, so the rules are
//! estimates for those cards.

/// Tensor of a graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shape {
    pub(crate) element: u64,
    pub(crate) sizes: Vec<u64>,
    /// `true` if the channels of a position are adjacent in memory.
    pub(crate) channels_last: bool,
}

/// A convolution of the input `x` and the filter `w` to the output `y`. In the backward pass, the
/// result is the gradient of `x` or `w`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Convolution {
    pub(crate) x: Shape,
    pub(crate) w: Shape,
    pub(crate) y: Shape,
    pub(crate) finds_w: bool,
}

impl Shape {
    fn bytes(&self) -> u64 {
        self.sizes.iter().product::<u64>() * self.element
    }

    /// Returns the number of positions in one channel.
    fn positions(&self) -> u64 {
        self.sizes.get(2..).map_or(1, |sizes| sizes.iter().product())
    }

    fn channels(&self) -> u64 {
        self.sizes.get(1).copied().unwrap_or(1)
    }

    /// Returns the size in bytes, if the number of channels is rounded up to a multiple of
    /// `channels` for tensor cores.
    fn padded(&self, channels: u64) -> u64 {
        let own = self.channels().max(1);
        self.bytes() / own * own.next_multiple_of(channels)
    }
}

impl Convolution {
    pub(crate) fn workspace(&self) -> u64 {
        if self.w.channels() < self.x.channels() {
            // The convolution has groups, like depthwise convolutions.
            return 0;
        }
        if self.x.channels_last { self.beside_each_other() } else { self.apart() }
    }

    /// Returns `true` if the filter has one position and is applied at each position of `x`.
    fn is_pointwise(&self) -> bool {
        self.w.positions() == 1 && self.x.positions() == self.y.positions()
    }

    /// Returns the workspace, in bytes, if channels are adjacent. Tensor cores need that layout, so
    /// no tensor is copied to another layout.
    fn beside_each_other(&self) -> u64 {
        let padding: u64 = [&self.x, &self.y]
            .iter()
            .filter(|shape| shape.channels() % 4 != 0)
            .map(|shape| shape.padded(4))
            .sum();
        let split = match (self.finds_w, self.is_pointwise()) {
            (false, _) => 0,
            (true, true) => (128 * self.w.bytes()).min(5 << 20),
            (true, false) => self.split(),
        };
        padding + split
    }

    /// Returns the workspace, in bytes, if channels are not adjacent. All three tensors are copied
    /// to another layout, unless the convolution is pointwise.
    fn apart(&self) -> u64 {
        // Tensor cores read 8 channels of a 2-byte type at once.
        let padded = |shape: &Shape| if self.in_fours() { shape.bytes() } else { shape.padded(8) };
        let both = padded(&self.x) + padded(&self.y);
        if self.is_pointwise() {
            let samples = self.x.sizes.first().copied().unwrap_or(1);
            // Gradients for each sample, in 4-byte numbers, to be added.
            let gradients = samples * self.w.bytes() / self.x.element.max(1) * 4;
            return match (self.finds_w, self.x.positions().is_multiple_of(4)) {
                (false, true) => 0,
                (true, true) if gradients <= both => gradients,
                _ => both,
            };
        }
        // A filter with one position is identical in both layouts.
        let filter = if self.w.positions() > 1 { padded(&self.w) } else { 0 };
        both + filter + if self.finds_w { self.split() } else { 0 }
    }

    fn in_fours(&self) -> bool {
        self.x.element == 4
    }

    /// Returns the size, in bytes, of partial gradients of a filter, which are added later.
    fn split(&self) -> u64 {
        let filter = self.w.bytes();
        match self.in_fours() {
            true => (14 * filter).min(8 << 20),
            false if filter < 1 << 20 => (26 * filter).min(5 << 19),
            false => 0,
        }
    }
}

/// Workspace of attention in both passes, bytes. PyTorch itself allocates the gradient of the
/// queries.
pub(crate) const ATTENTION: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(element: u64, sizes: [u64; 4], channels_last: bool) -> Shape {
        Shape { element, sizes: sizes.to_vec(), channels_last }
    }

    /// Returns the workspaces, in bytes, of the forward pass and of the filter's gradient. Filter
    /// and images are square.
    fn bytes(element: u64, [n, c, h, k, r, stride]: [u64; 6], last: bool) -> [u64; 2] {
        let x = shape(element, [n, c, h, h], last);
        let w = shape(element, [k, c, r, r], last);
        let y = shape(element, [n, k, h / stride, h / stride], last);
        [false, true].map(|finds_w| {
            Convolution { x: x.clone(), w: w.clone(), y: y.clone(), finds_w }.workspace()
        })
    }

    #[test]
    fn convolution_workspaces_are_near_h200() {
        // Element size, convolution, whether channels are last, and the measured bytes of the two
        // passes.
        let measured = [
            (4, [32, 3, 224, 64, 7, 2], false, [122_065_680, 134_522_000]),
            (4, [32, 128, 56, 128, 3, 2], false, [64_815_120, 73_073_319]),
            (4, [32, 128, 28, 128, 3, 1], false, [26_279_952, 34_538_151]),
            (4, [32, 128, 28, 512, 1, 1], false, [0, 8_388_608]),
            (4, [32, 512, 7, 2048, 1, 1], false, [16_056_336, 16_056_336]),
            (2, [32, 3, 224, 64, 7, 2], false, [77_120_528, 83_242_128]),
            (2, [32, 128, 28, 128, 3, 1], false, [13_139_984, 15_499_655]),
            (2, [32, 256, 56, 64, 1, 1], false, [0, 2_097_152]),
            (2, [32, 128, 56, 128, 3, 2], true, [0, 3_539_535]),
            (2, [32, 256, 14, 256, 3, 1], true, [0, 0]),
            (2, [32, 3, 224, 64, 7, 2], true, [12_870_160, 13_071_247]),
        ];
        for (element, convolution, last, found) in measured {
            let rule = bytes(element, convolution, last);
            for (rule, found) in rule.into_iter().zip(found) {
                let most = (found / 8).max(1 << 20);
                assert!(rule.abs_diff(found) <= most, "{convolution:?}: {rule}, and not {found}");
            }
        }
    }
}
