use super::*;

#[test]
fn a_noise_is_a_number_of_per_cent() {
    assert_eq!((percent("5"), percent("7.5%"), percent("0")), (Ok(5.0), Ok(7.5), Ok(0.0)));
    for bad in ["", "five", "-1", "inf", "NaN"] {
        assert!(percent(bad).is_err(), "{bad}");
    }
}
