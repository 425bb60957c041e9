//! Tests the numbering of keys, and groups of several batches, against the standard library's maps.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::BTreeMap;

use gpuheap_groups::{
    Aggregate, Column, Error, KeyType, Merger, Missing, NumberType, Part, Plan, factorize, join,
    sort, take_text,
};
use proptest::prelude::*;

/// A row. A float and a text form its key, and an integer is its value. Each may be missing.
type Row = (Option<f64>, Option<String>, Option<i64>);

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let float = prop::option::of(prop::sample::select(vec![-1.5, -0.0, 0.0, 2.0, 1e300, f64::NAN]));
    let text = prop::option::of(prop::sample::select(vec!["", "a", "ab", "\0", "a\0b", "ü"]));
    let row = (float, text.prop_map(|text| text.map(str::to_owned)), prop::option::of(-9_i64..9));
    prop::collection::vec(row, 0..60)
}

/// The bytes of the columns of rows.
#[derive(Default)]
struct Table {
    floats: Vec<u8>,
    offsets: Vec<u8>,
    text: Vec<u8>,
    valid: [Vec<u8>; 2],
}

impl Table {
    fn new(rows: &[Row]) -> Table {
        let mut table = Table { offsets: vec![0; 4], ..Table::default() };
        table.valid = [(); 2].map(|()| vec![0; rows.len().div_ceil(8)]);
        for (row, (float, text, _)) in rows.iter().enumerate() {
            table.floats.extend_from_slice(&float.unwrap_or(7.0).to_le_bytes());
            table.text.extend_from_slice(text.as_deref().unwrap_or("x").as_bytes());
            table.offsets.extend_from_slice(&(table.text.len() as i32).to_le_bytes());
            for (bits, is_valid) in table.valid.iter_mut().zip([float.is_some(), text.is_some()]) {
                bits[row / 8] |= u8::from(is_valid) << (row % 8);
            }
        }
        table
    }

    fn columns(&self) -> [Column<'_>; 2] {
        let [floats, texts] = &self.valid;
        [
            Column::numbers(NumberType::F64, &self.floats, Some(floats)).unwrap(),
            Column::text(&self.offsets, false, &self.text, Some(texts)).unwrap(),
        ]
    }
}

/// A key that sorts like the keys of groups. Missing values are last.
type ModelKey = ((bool, i64), (bool, String));

fn model_key((float, text, _): &Row) -> ModelKey {
    let float = float.filter(|float| !float.is_nan()).map(|float| (float * 2.0) as i64);
    let text = text.clone();
    ((float.is_none(), float.unwrap_or(0)), (text.is_none(), text.unwrap_or_default()))
}

proptest! {
    #[test]
    fn codes_number_keys_in_order(rows in rows(), keeps in any::<bool>()) {
        let table = Table::new(&rows);
        let missing = if keeps { Missing::Group } else { Missing::LeftOut };
        let dense = factorize(&table.columns(), missing).unwrap();
        let mut model: BTreeMap<ModelKey, u32> = BTreeMap::new();
        let is_in = |key: &ModelKey| keeps || !(key.0.0 || key.1.0);
        for key in rows.iter().map(model_key).filter(is_in) {
            model.insert(key, 0);
        }
        for (rank, code) in model.values_mut().enumerate() {
            *code = rank as u32;
        }
        let expected: Vec<u32> = rows
            .iter()
            .map(|row| model.get(&model_key(row)).copied().unwrap_or(u32::MAX))
            .collect();
        prop_assert_eq!(dense.codes, expected);
        prop_assert_eq!(dense.keys.len(), model.len());
        let types = table.columns().map(|column| KeyType::of(&column));
        let columns = dense.keys.columns(&types).unwrap();
        for (index, ((no_float, float), (no_text, text))) in model.keys().enumerate() {
            let is_present = |of: usize| columns[of].present.as_ref().is_none_or(|all| all[index]);
            prop_assert_eq!([is_present(0), is_present(1)], [!no_float, !no_text]);
            let found = f64::from_le_bytes(columns[0].values[index * 8..][..8].try_into().unwrap());
            prop_assert!(*no_float || (found * 2.0) as i64 == *float && !(found == 0.0 && found.is_sign_negative()));
            let offsets = columns[1].offsets.as_ref().unwrap();
            let range = offsets[index] as usize..offsets[index + 1] as usize;
            prop_assert!(*no_text || &columns[1].values[range] == text.as_bytes());
        }
    }

    #[test]
    fn merged_batches_equal_one_pass(batches in prop::collection::vec(rows(), 1..8), limit in 0..4000_usize) {
        let all = Aggregate::ALL.map(|(_, aggregate)| aggregate).to_vec();
        let plan = Plan::new(&[(Some(NumberType::I64), all)]).unwrap();
        let mut merger = Merger::new(plan.clone(), limit, std::env::temp_dir());
        let mut model: BTreeMap<ModelKey, Vec<i64>> = BTreeMap::new();
        for rows in &batches {
            let table = Table::new(rows);
            let dense = factorize(&table.columns(), Missing::Group).unwrap();
            let mut groups = vec![Vec::new(); dense.keys.len()];
            for (code, row) in dense.codes.iter().zip(rows) {
                groups[*code as usize].extend(row.2);
                model.entry(model_key(row)).or_default().extend(row.2);
            }
            let parts: Vec<Vec<u8>> = plan
                .parts(0)
                .iter()
                .map(|part| groups.iter().flat_map(|group| part_of(*part, group)).collect())
                .collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            merger.add(dense.keys, &parts).unwrap();
        }
        let is_spilled = merger.spilled() > 0;
        prop_assert!(limit > 0 || is_spilled != model.is_empty());
        let mut groups = merger.merged().groups().unwrap();
        let mut left = model.values();
        loop {
            let (keys, states) = groups.next_chunk(7).unwrap();
            if keys.is_empty() {
                break;
            }
            let [counts, sums, means, least, most, deviations] =
                Aggregate::ALL.map(|(_, of)| plan.result(0, of, &states).unwrap());
            for index in 0..keys.len() {
                let values = left.next().unwrap();
                let int = |of: &[u8]| i64::from_le_bytes(of[index * 8..][..8].try_into().unwrap());
                let float = |of: &[u8]| f64::from_bits(int(of) as u64);
                let is_present = |of: &Option<Vec<bool>>| of.as_ref().is_none_or(|all| all[index]);
                prop_assert_eq!(int(&counts.values), values.len() as i64);
                prop_assert_eq!(int(&sums.values), values.iter().sum::<i64>());
                for of in [&means.present, &least.present, &most.present] {
                    prop_assert_eq!(is_present(of), !values.is_empty());
                }
                prop_assert_eq!(is_present(&deviations.present), values.len() > 1);
                let (Some(min), Some(max)) = (values.iter().min(), values.iter().max()) else {
                    continue;
                };
                prop_assert_eq!((int(&least.values), int(&most.values)), (*min, *max));
                let (count, mean) = (values.len() as f64, float(&means.values));
                prop_assert!((mean - values.iter().sum::<i64>() as f64 / count).abs() < 1e-9);
                if values.len() > 1 {
                    let squares: f64 = values.iter().map(|one| (*one as f64 - mean).powi(2)).sum();
                    let expected = (squares / (count - 1.0)).sqrt();
                    prop_assert!((float(&deviations.values) - expected).abs() < 1e-9);
                }
            }
        }
        prop_assert!(left.next().is_none());
    }

    #[test]
    fn sort_is_stable_missing_last(rows in rows(), down in any::<[bool; 2]>()) {
        let table = Table::new(&rows);
        let order = sort(&table.columns(), &down).unwrap();
        let mut expected: Vec<u32> = (0..rows.len() as u32).collect();
        let keys: Vec<ModelKey> = rows.iter().map(model_key).collect();
        expected.sort_by(|one, other| {
            let (one, other) = (&keys[*one as usize], &keys[*other as usize]);
            let turn = |order: std::cmp::Ordering, down: bool| if down { order.reverse() } else { order };
            let first = one.0.0.cmp(&other.0.0).then(turn(one.0.1.cmp(&other.0.1), down[0]));
            first.then(one.1.0.cmp(&other.1.0)).then(turn(one.1.1.cmp(&other.1.1), down[1]))
        });
        prop_assert_eq!(order, expected);
    }

    #[test]
    fn join_pairs_equal_keys(left in rows(), right in rows(), keeps in any::<bool>()) {
        let (one, other) = (Table::new(&left), Table::new(&right));
        let found = join(&one.columns(), &other.columns(), keeps).unwrap();
        let mut expected = Vec::new();
        for (row, key) in left.iter().map(model_key).enumerate() {
            let matching = right.iter().enumerate().filter(|(_, other)| model_key(other) == key);
            let before = expected.len();
            expected.extend(matching.map(|(partner, _)| (row as u32, partner as u32)));
            if keeps && expected.len() == before {
                expected.push((row as u32, u32::MAX));
            }
        }
        let found: Vec<(u32, u32)> = found.left.into_iter().zip(found.right).collect();
        prop_assert_eq!(found, expected);
    }
}

/// Computes a partial result of the values of a group, and returns its bytes.
fn part_of(part: Part, values: &[i64]) -> [u8; 8] {
    let mean = values.iter().sum::<i64>() as f64 / values.len() as f64;
    match part {
        Part::Count => values.len() as i64,
        Part::Sum => values.iter().sum(),
        Part::Total => (values.iter().sum::<i64>() as f64).to_bits() as i64,
        Part::Squares => {
            let squares: f64 = values.iter().map(|one| (*one as f64 - mean).powi(2)).sum();
            squares.to_bits() as i64
        }
        Part::Min => values.iter().copied().min().unwrap_or(-77),
        Part::Max => values.iter().copied().max().unwrap_or(77),
    }
    .to_le_bytes()
}

#[test]
fn every_number_type_keeps_order() {
    let edges = [i64::MIN, -129, -128, -1, 0, 1, 127, 128, 255, 256, 65_535, i64::MAX];
    for of in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"] {
        let number = NumberType::from_name(of).unwrap();
        let bytes: Vec<u8> =
            edges.iter().flat_map(|edge| edge.to_le_bytes()[..number.size()].to_vec()).collect();
        let wide = |bytes: &[u8]| {
            let is_negative = of.starts_with('i') && bytes.last().is_some_and(|last| *last > 127);
            let mut wide = [if is_negative { 0xff } else { 0 }; 16];
            wide[..bytes.len()].copy_from_slice(bytes);
            i128::from_le_bytes(wide)
        };
        let mut expected: Vec<i128> = bytes.chunks_exact(number.size()).map(wide).collect();
        expected.sort_unstable();
        expected.dedup();
        let dense = factorize(&[Column::numbers(number, &bytes, None).unwrap()], Missing::Group);
        let keys = dense.unwrap().keys.columns(&[KeyType::Number(number)]).unwrap();
        let found: Vec<i128> = keys[0].values.chunks_exact(number.size()).map(wide).collect();
        assert_eq!(found, expected, "{of}");
    }
}

#[test]
fn codes_stand_for_dictionary_values() {
    let (offsets, text) = ([0_i32, 1, 2, 3].map(i32::to_le_bytes).concat(), *b"yxy");
    let dictionary = Column::text(&offsets, false, &text, None).unwrap();
    let codes = [0_i8, 1, 2, -1, 5].map(|code| code as u8);
    let column = Column::codes(NumberType::I8, &codes, dictionary.clone(), None).unwrap();
    let dense = factorize(&[column], Missing::Group).unwrap();
    // Rows 0 and 2 have the same text. The codes of rows 3 and 4 are not in the dictionary.
    assert_eq!(dense.codes, [1, 0, 1, 2, 2]);
    let keys = dense.keys.columns(&[KeyType::Text]).unwrap();
    assert_eq!(keys[0].values, b"xy");
    assert_eq!(keys[0].present, Some(vec![true, true, false]));
    let (offsets, bytes) = take_text(&dictionary, &[2, u32::MAX, 1]).unwrap();
    assert_eq!((offsets, bytes), (vec![0, 1, 1, 2], b"yx".to_vec()));
}

#[test]
fn contradicting_input_is_refused() {
    let refused = |made: Result<Column<'_>, Error>| matches!(made, Err(Error::Invalid(_)));
    assert!(refused(Column::numbers(NumberType::I32, &[0; 7], None)));
    assert!(refused(Column::numbers(NumberType::I8, &[0; 9], Some(&[0]))));
    let offsets = |all: [i32; 3]| all.map(i32::to_le_bytes).concat();
    assert!(refused(Column::text(&offsets([0, 2, 1]), false, b"abc", None)));
    assert!(refused(Column::text(&offsets([0, 2, 4]), false, b"abc", None)));
    assert!(refused(Column::text(&offsets([-1, 0, 0]), false, b"abc", None)));
    let numbers = |bytes: &'static [u8]| Column::numbers(NumberType::I8, bytes, None).unwrap();
    assert!(refused(Column::codes(NumberType::F32, &[0; 4], numbers(b"a"), None)));
    assert!(factorize(&[], Missing::Group).is_err());
    assert!(factorize(&[numbers(b"ab"), numbers(b"a")], Missing::Group).is_err());
    assert!(Plan::new(&[(None, vec![Aggregate::Sum])]).is_err());
    assert_eq!(Column::text(&[], false, b"", None).unwrap().rows(), 0);
}

#[test]
fn spill_without_folder_is_named() {
    let plan = Plan::new(&[(None, vec![Aggregate::Count])]).unwrap();
    let mut merger = Merger::new(plan, 0, "/nowhere/at/all".into());
    let column = Column::numbers(NumberType::I8, &[1], None).unwrap();
    let dense = factorize(&[column], Missing::Group).unwrap();
    let error = merger.add(dense.keys, &[&[1; 8]]).unwrap_err();
    assert!(error.to_string().contains("a file of /nowhere/at/all, after 0 bytes"), "{error}");
}
