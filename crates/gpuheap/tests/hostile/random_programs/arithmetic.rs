//! Computes with the `i32` arrays of a random program, and compares the results with `ndarray`.

use gpuheap::ndarray::Axis;

use super::*;

/// Maximum number of elements of an operand. Results may be larger than their operands, so without
/// a limit they would grow with each step.
const MOST: usize = 20_000;

/// Runs one operation on an array. Returns the new arrays.
pub(super) fn calculate(
    slot: &mut Slot<i32>,
    (_, a, b, c): Step,
    world: &mut World<'_>,
) -> Vec<Box<dyn Thing>> {
    let (heap, freed, op) = (slot.memory.borrow().heap, slot.is_freed(), b % 4);
    let Some(host) = slot.host().filter(|host| host.len() <= MOST) else { return Vec::new() };
    let made = match a % 10 {
        // Combines the array with its own first row, which is broadcast.
        0 if host.ndim() > 0 && host.shape()[0] > 0 => {
            let row = slot.view().into_slice(..1).unwrap();
            let expected = combined(op, &host, &host.slice_axis(Axis(0), (..1).into()).to_owned());
            unless_refused(combine(op, slot.view(), row), freed).zip(expected)
        }
        0..=3 => {
            let Some(other) = other(world, heap, b / 4) else { return Vec::new() };
            let Some(right) = other.host().filter(|right| right.len() <= MOST) else {
                return Vec::new();
            };
            let any_freed = freed || other.is_freed();
            let in_place = a % 10 == 3;
            let expected = combined(op, &host, &right)
                .filter(|found| !in_place || found.shape() == host.shape());
            let Some(expected) = expected.filter(|found| found.len() <= MOST) else {
                let shapes = together(host.shape(), right.shape());
                if shapes.is_none_or(|shape| in_place && shape != host.shape()) {
                    let (left, right) = (slot.view(), other.view());
                    assert!(in_place || combine(op, left, right).is_err(), "shapes do not match");
                }
                return Vec::new();
            };
            if in_place {
                if Rc::ptr_eq(&slot.memory, &other.memory) {
                    return Vec::new();
                }
                let right = other.view();
                let mut left = slot.view_mut();
                let changed = match op {
                    0 => left.add_assign(right),
                    1 => left.sub_assign(right),
                    2 => left.mul_assign(right),
                    _ => left.div_assign(right),
                };
                if unless_refused(changed, any_freed).is_some() {
                    slot.write(0, &flat(expected));
                }
                return Vec::new();
            }
            unless_refused(combine(op, slot.view(), other.view()), any_freed)
                .map(|found| (found, expected))
        }
        4 => {
            let (view, number) = (slot.view(), c as i32);
            let found = match op {
                0 => number + &view,
                1 => number - &view,
                2 => number * &view,
                _ => number / &view,
            };
            unless_refused(found, freed)
                .map(|found| (found, host.mapv(|one| calculated(op, number, one))))
        }
        5 => {
            let slice = slices(&host, b, c);
            let found = unless_refused(slot.view().copy_slice(&slice[..]), freed);
            found.map(|found| (found, host.slice(&slice[..]).to_owned()))
        }
        6 if host.ndim() > 0 => {
            let Some(other) = other(world, heap, b) else { return Vec::new() };
            let Some(right) = other.host() else { return Vec::new() };
            let (mut slice, mut host) = (slices(&host, 0, 0), host);
            slice[0] = SliceInfoElem::Slice { start: 0, end: None, step: STEPS[c as usize % 4] };
            let gone = freed || other.is_freed();
            let mut part = host.slice_mut(&slice[..]);
            let Some(source) = right.broadcast(part.raw_dim()) else { return Vec::new() };
            if !Rc::ptr_eq(&slot.memory, &other.memory) {
                let source_view = other.view();
                if unless_refused(slot.view_mut().write_slice(&slice[..], &source_view), gone)
                    .is_some()
                {
                    part.assign(&source);
                    slot.write(0, &flat(host));
                }
            }
            return Vec::new();
        }
        7 => {
            let found = unless_refused(slot.view().copy_transposed(), freed);
            found.map(|found| (found, host.t().to_owned()))
        }
        8 => {
            let less = slot.view().less(c as i32).and_then(|less| less.sum());
            let count = host.iter().filter(|one| **one < c as i32).count() as u64;
            assert_eq!(unless_refused(less, freed).unwrap_or(count), count);
            if host.ndim() > 0 {
                let axis = b as usize % host.ndim();
                let sums = slot.view().sum_axis(axis).and_then(|sums| sums.to_ndarray());
                let expected = host.mapv(i64::from).sum_axis(Axis(axis));
                assert_eq!(unless_refused(sums, freed).unwrap_or(expected.clone()), expected);
            }
            assert_eq!(slot.view().max().ok(), host.iter().max().copied().filter(|_| !freed));
            return Vec::new();
        }
        _ => {
            let there = slot.view().cast::<i16>().and_then(|there| there.cast::<i32>());
            unless_refused(there, freed)
                .map(|found| (found, host.mapv(|one| i32::from(one as i16))))
        }
    };
    let Some((found, expected)) = made else { return Vec::new() };
    assert_eq!(found.shape(), expected.shape());
    super::slot(world, heap, Some(found), &flat(expected))
}

const STEPS: [isize; 4] = [1, 2, -1, -3];

/// Makes a slice of every axis, with a start inside the axis and a step.
fn slices(host: &ArrayD<i32>, starts: u32, steps: u32) -> Vec<SliceInfoElem> {
    let axes = host.shape().iter().enumerate();
    axes.map(|(axis, length)| {
        let start = (starts >> (8 * axis)) as usize % (length + 1);
        let step = STEPS[(steps >> (2 * axis)) as usize % 4];
        SliceInfoElem::Slice { start: start as isize, end: None, step }
    })
    .collect()
}

fn flat(host: ArrayD<i32>) -> Vec<i32> {
    host.iter().copied().collect()
}

/// Returns one of the `i32` arrays on the heap's device; `None` if it has none.
fn other<'a>(world: &'a World<'_>, heap: usize, which: u32) -> Option<&'a Slot<i32>> {
    let slots = world.things.iter().filter_map(|thing| (&**thing as &dyn Any).downcast_ref());
    let is_near =
        |other: &&Slot<i32>| world.device_of(other.memory.borrow().heap) == world.device_of(heap);
    let slots: Vec<&Slot<i32>> = slots.filter(is_near).collect();
    slots.get(which as usize % slots.len().max(1)).copied()
}

fn combine(
    op: u32,
    left: DeviceView<'_, i32, IxDyn>,
    right: DeviceView<'_, i32, IxDyn>,
) -> Result<DeviceArray<i32, IxDyn>, Error> {
    match op {
        0 => left.try_add(right),
        1 => left.try_sub(right),
        2 => left.try_mul(right),
        _ => left.try_div(right),
    }
}

fn calculated(op: u32, left: i32, right: i32) -> i32 {
    match op {
        0 => left.wrapping_add(right),
        1 => left.wrapping_sub(right),
        2 => left.wrapping_mul(right),
        _ if right == 0 => 0,
        _ => left.wrapping_div(right),
    }
}

/// Combines two arrays on the host; `None` if their shapes do not match.
fn combined(op: u32, left: &ArrayD<i32>, right: &ArrayD<i32>) -> Option<ArrayD<i32>> {
    let shape = together(left.shape(), right.shape())?;
    if shape.iter().product::<usize>() > MOST {
        return None;
    }
    let (left, right) = (left.broadcast(&shape[..])?, right.broadcast(&shape[..])?);
    Some(ArrayD::from_shape_fn(shape, |at| calculated(op, left[&at], right[&at])))
}

/// Returns the shape to which two shapes are broadcast; `None` if they do not match.
fn together(left: &[usize], right: &[usize]) -> Option<Vec<usize>> {
    let rank = left.len().max(right.len());
    let axis =
        |shape: &[usize], at: usize| (at + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
    let joined = (0..rank).map(|at| match (axis(left, at), axis(right, at)) {
        (one, other) if one == other || other == 1 => Some(one),
        (1, other) => Some(other),
        _ => None,
    });
    joined.collect()
}
