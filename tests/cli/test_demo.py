import demo


def test_the_demo_says_what_it_shows(monkeypatch, capsys):
    monkeypatch.setattr(demo, "bundled", lambda: None)
    demo.main()
    shown = capsys.readouterr().out
    assert shown.startswith("No trained model comes with the package yet: this one is tiny and its weights are random.")
    for _, command in demo.COMMANDS:
        assert f"$ polyseme {command.replace('MODEL', 'model')}\n" in shown
    assert "4  They [play] football on Sundays ." in shown
    assert "tokens/s" in shown.splitlines()[-1]
