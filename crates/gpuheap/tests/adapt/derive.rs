//! Types that the derive macro makes.

use std::fmt::Debug;
use std::marker::PhantomData;

use gpuheap::emu::Schedule;
use gpuheap::{Adapt, DeviceArray, Error, Host, PoolKind, Target};
use ndarray::{Array1, Array2, Ix2, arr1, arr2};

use crate::support::{assert_all_returned, make_heap};

#[derive(Adapt, Debug, PartialEq)]
struct Layer<W, B = W> {
    weights: W,
    bias: Option<B>,
    name: String,
    steps: usize,
}

#[derive(Adapt, Debug, PartialEq)]
struct Pair<A>(A, #[adapt(same)] &'static str, Vec<A>);

#[derive(Adapt, Clone, Debug, PartialEq)]
struct Nothing;

#[derive(Adapt, Debug, PartialEq)]
enum Shape<A, B> {
    Empty,
    One(A),
    Both { left: A, right: Box<B> },
    Many(Vec<Shape<A, B>>),
    Nested(Option<Box<Shape<A, B>>>),
}

#[derive(Adapt, Debug, PartialEq)]
enum Never {}

#[derive(Adapt, Debug, PartialEq)]
struct Constant<A, const N: usize> {
    arrays: [A; N],
    of: Nothing,
}

/// A struct with bounds. The adapted struct has the same bounds and lifetime, and the same type for
/// each parameter that is not adapted.
#[derive(Adapt, Debug)]
struct Bounded<'a, A: Debug, U, T>
where
    A: Sized,
    Option<A>: Debug,
{
    array: A,
    tag: PhantomData<A>,
    unit: PhantomData<U>,
    #[adapt(same)]
    name: &'a str,
    #[adapt(same)]
    kept: Vec<T>,
}

/// A unit of length. It needs no rule for `adapt`, because no struct stores a value of it.
#[derive(Debug)]
struct Metres;

fn with_target(test: impl Fn(&Target) -> Result<(), Error>) {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(6), PoolKind::Split);
    test(&heap.target().unwrap()).unwrap();
    assert_all_returned(&device, &heap, "derive");
}

#[test]
fn derived_structs_change_type_parameters() {
    with_target(|target| {
        let (weights, name) = (arr2(&[[1.0, 2.0]]), String::from("first"));
        let layer = Layer { weights, bias: Some(vec![3_u8]), name, steps: 7 };
        let up: Layer<DeviceArray<f64, Ix2>, DeviceArray<u8>> = target.adapt(&layer)?;
        assert_eq!((up.weights.shape(), &up.name[..], up.steps), (&[1, 2][..], "first", 7));
        let down: Layer<Array2<f64>, Array1<u8>> = Host.adapt(&up)?;
        assert_eq!((down.weights, down.bias), (layer.weights.clone(), Some(arr1(&[3]))));
        let up: Layer<DeviceArray<f32, Ix2>, DeviceArray<f32>> = target.cu(&layer)?;
        assert_eq!((up.bias.unwrap().to_vec()?, up.steps), (vec![3.0], 7));
        // Adapts a vector of structures that contain another structure.
        let bias = None::<Vec<u8>>;
        let nested = vec![Layer { weights: layer, bias, name: String::new(), steps: 0 }];
        let up = target.adapt(&nested)?;
        let down = Host.adapt(&up)?;
        assert_eq!(down[0].weights.weights, nested[0].weights.weights);
        Ok(())
    });
}

#[test]
fn tuple_structs_units_and_constants() {
    with_target(|target| {
        let pair = Pair(arr1(&[1]), "name", vec![arr1(&[2, 3])]);
        let up: Pair<DeviceArray<i32>> = target.adapt(&pair)?;
        assert_eq!((up.1, Host.adapt(&up)?), ("name", pair));
        assert_eq!(target.adapt(&Nothing)?, Nothing);
        let constant = Constant { arrays: [arr1(&[1_u8]), arr1(&[2])], of: Nothing };
        let up: Constant<DeviceArray<u8>, 2> = target.adapt(&constant)?;
        assert_eq!(Host.adapt(&up)?, constant);
        assert_eq!(target.adapt(&Vec::<Never>::new())?, []);
        Ok(())
    });
}

#[test]
fn enums_keep_their_variant() {
    with_target(|target| {
        let shapes = Shape::Many(vec![
            Shape::Empty,
            Shape::One(arr1(&[1_u8])),
            Shape::Both { left: arr1(&[2]), right: Box::new(arr2(&[[0.5]])) },
            Shape::Nested(Some(Box::new(Shape::One(arr1(&[3]))))),
            Shape::Nested(None),
        ]);
        let up: Shape<DeviceArray<u8>, DeviceArray<f64, Ix2>> = target.adapt(&shapes)?;
        assert_eq!(Host.adapt(&up)?, shapes);
        let Shape::Many(up) = target.cu(&shapes)? else { panic!("another variant") };
        let Shape::Both { right, .. } = &up[2] else { panic!("another variant") };
        let right: &DeviceArray<f32, Ix2> = right;
        assert_eq!(right.to_vec()?, [0.5]);
        Ok(())
    });
}

#[test]
fn bounds_lifetimes_and_markers() {
    with_target(|target| {
        let name = String::from("x");
        let bounded = Bounded {
            array: vec![1_u8],
            tag: PhantomData,
            unit: PhantomData::<Metres>,
            name: &name,
            kept: vec![1.5_f64],
        };
        let up: Bounded<'_, DeviceArray<u8>, Metres, f64> = target.adapt(&bounded)?;
        assert_eq!((up.array.to_vec()?, up.name, &up.kept[..]), (vec![1], "x", &[1.5][..]));
        let down: Bounded<'_, Array1<u8>, Metres, f64> = Host.adapt(&up)?;
        assert_eq!((down.array, down.tag), (arr1(&[1]), PhantomData));
        assert_eq!(down.unit, PhantomData);
        Ok(())
    });
}
