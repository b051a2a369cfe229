"""Palette and style sheet from the colour tokens, over Qt's Fusion style."""

from __future__ import annotations

import string
import sys
from pathlib import Path
from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

from app.theme.palette import DARK, LIGHT, Palette, ThemeChoice
from trainer_core.messages import Language

_LATIN_FAMILIES: Final = {"win32": ["Segoe UI"], "darwin": ["Helvetica Neue"]}
_CHINESE_FAMILIES: Final = {"win32": ["Microsoft YaHei UI", "Microsoft YaHei"], "darwin": ["PingFang SC"]}
_MONOSPACE_FAMILIES: Final = {
    "win32": ["Consolas", "Microsoft YaHei UI", "Microsoft YaHei"],
    "darwin": ["Menlo", "PingFang SC"],
}
_DEFAULT_MONOSPACE_FAMILIES: Final = ["DejaVu Sans Mono", "Noto Sans Mono", "Noto Sans CJK SC"]
_IMAGES_DIR: Final = Path(__file__).resolve().parent / "images"  # made by assets/make_icons.py

_STYLE_SHEET: Final = string.Template("""
QMainWindow, QDialog, #page { background: $window; }
QToolTip { color: $text; background: $surface; border: 1px solid $border; padding: 4px; }
#card { background: $surface; border: 1px solid $border; border-radius: 6px; }
#muted { color: $muted; }
#section { font-weight: 600; }
#subsection { font-weight: 600; color: $muted; }
#fieldError, #error { color: $bad; }
#good { color: $good; }
#warnText { color: $warn; }
#tileValue { font-size: 17pt; font-weight: 600; }
#stateWord { font-size: 13pt; font-weight: 600; }
#welcomeTitle { font-size: 17pt; font-weight: 600; }
#pathLine { background: $border; min-width: 4px; }
QToolButton[step="true"] { background: transparent; border: 1px solid transparent; padding: 2px 4px; }
QToolButton[step="true"]:hover { background: $hover; }
QToolButton[step="true"]:focus { border-color: $accent; }
QToolButton[mark="next"] { color: $accent; }
QToolButton[mark="open"] { color: $muted; }
#verdict { font-size: 11pt; font-weight: 600; }
QLabel[level="good"] { color: $good; }
QLabel[level="warn"] { color: $warn; }
QLabel[level="bad"] { color: $bad; }

QLineEdit, QDoubleSpinBox, QPlainTextEdit, QTextBrowser, QListWidget, QTableView, QComboBox {
    background: $field; border: 1px solid $border; border-radius: 4px;
    selection-background-color: $accent; selection-color: $on_accent;
}
QLineEdit, QComboBox, QDoubleSpinBox { padding: 3px 6px; min-height: 18px; }
QDoubleSpinBox::up-button, QDoubleSpinBox::down-button { width: 0; border: none; }
QDoubleSpinBox QLineEdit { padding: 0 6px; min-height: 0; border: none; background: transparent; }
QPlainTextEdit, QListWidget { padding: 0 3px; }
#transcript, #samples { background: $field; border: 1px solid $border; border-radius: 4px; }
#transcript:focus, #samples:focus { border-color: $accent; }
QLineEdit:focus, QDoubleSpinBox:focus, QComboBox:focus, QListWidget:focus, QPlainTextEdit:focus, QTableView:focus { border-color: $accent; }
QLineEdit[wrong="true"], QComboBox[wrong="true"] { border: 1px solid $bad; background: $bad_surface; }
QLineEdit:disabled, QComboBox:disabled { color: $muted; background: $window; }
QComboBox QAbstractItemView { background: $surface; border: 0 solid $border; border-width: 0 1px; selection-background-color: $accent;
    selection-color: $on_accent; }

QPushButton, QToolButton {
    outline: 0; background: $surface; border: 1px solid $border; border-radius: 4px; padding: 4px 12px; min-height: 18px;
}
QToolButton { padding: 4px 8px; }
QPushButton#addToQueue { padding: 4px 6px; }
QPushButton#addFile, QPushButton#addFolder, QPushButton#removeData { padding: 4px 8px; }
QFileDialog { backward-icon: url("$images/back-$name.png"); forward-icon: url("$images/forward-$name.png");
    filedialog-parent-directory-icon: url("$images/up-$name.png"); }
QDialogButtonBox { dialogbuttonbox-buttons-have-icons: 0; }
QComboBox::drop-down { border: 0; width: 22px; }
QComboBox::down-arrow { image: url("$images/chevron-$name.png"); width: 12px; height: 12px; }
QCheckBox { spacing: 6px; }
QCheckBox::indicator { width: 14px; height: 14px; border: 1px solid $muted; border-radius: 3px; background: $field; }
QCheckBox::indicator:checked { background: $accent; border-color: $accent; image: url("$images/tick-$name.png"); }
QCheckBox::indicator:disabled { border-color: $border; background: $window; }
QCheckBox::indicator:checked:disabled { background: $muted; border-color: $muted; }
QCheckBox:focus { color: $accent; }
QSlider::groove:horizontal { height: 4px; border-radius: 2px; background: $border; }
QSlider::sub-page:horizontal { background: $accent; border-radius: 2px; }
QSlider::handle:horizontal { width: 14px; height: 14px; margin: -5px 0; border-radius: 7px; background: $accent; }
QSlider::handle:horizontal:focus { border: 1px solid $text; width: 12px; height: 12px; }
QPushButton:hover, QToolButton:hover { background: $hover; }
QPushButton:focus, QToolButton:focus { border-color: $accent; }
QPushButton:checked { background: $note_surface; border-color: $accent; }
QPushButton:disabled, QToolButton:disabled { color: $muted; background: $window; border-color: $border; }
QPushButton#primary { background: $accent; color: $on_accent; border-color: $accent; font-weight: 600; }
QPushButton#primary:hover { background: $accent; border-color: $text; }
QPushButton#primary:disabled { background: $hover; color: $muted; border-color: $border; font-weight: 600; }
QToolButton#flat, QPushButton#flat { background: transparent; border: 1px solid transparent; padding: 2px 6px; }
QPushButton#link { background: transparent; border: 1px solid transparent; padding: 1px 2px;
    min-height: 16px; color: $accent; }
QPushButton#hint { background: transparent; border: 1px solid transparent; padding: 1px 3px; min-height: 16px;
    color: $muted; text-align: left; }
QPushButton#hint:hover { background: $hover; }
QPushButton#hint:focus { border-color: $accent; }
QPushButton#link:hover { background: $hover; }
QPushButton#link:focus { border-color: $accent; }
QPushButton#link:disabled { color: $muted; }
QToolButton#flat:hover, QPushButton#flat:hover { background: $hover; }
QToolButton#flat:focus, QPushButton#flat:focus { border-color: $accent; }
QToolButton::menu-indicator, QPushButton#link::menu-indicator { image: none; width: 0; }
QToolButton#moreForRuns { padding-right: 24px; }
QToolButton#moreForRuns::menu-indicator { image: url("$images/chevron-$name.png"); width: 12px; height: 12px;
    subcontrol-origin: padding; subcontrol-position: right center; right: 7px; }

QTabWidget::pane { border: 0; border-top: 1px solid $border; }
QTabBar { background: transparent; }
QTabBar::tab { background: transparent; color: $muted; padding: 7px 6px; margin-right: 1px; border: 0; border-bottom: 2px solid transparent; }
QTabBar::tab:selected { color: $text; border-bottom-color: $accent; }
QTabBar::tab:hover { color: $text; }
QTabBar::tab:focus { border-bottom-color: $text; }
QTabBar QToolButton { background: $window; border: 0; padding: 0; }
QTabBar QToolButton::left-arrow { image: url("$images/back-$name.png"); width: 12px; height: 12px; }
QTabBar QToolButton::right-arrow { image: url("$images/forward-$name.png"); width: 12px; height: 12px; }

QProgressBar { background: $hover; border: 0; border-radius: 4px; max-height: 8px; min-height: 8px; }
QProgressBar::chunk { background: $accent; border-radius: 4px; }
QProgressBar[level="good"]::chunk { background: $good; }
QProgressBar[level="warn"]::chunk { background: $warn; }
QProgressBar[level="bad"]::chunk { background: $bad; }
QHeaderView::section { background: $window; color: $muted; border: 0; border-bottom: 1px solid $border; padding: 5px 8px; }
QTableView { gridline-color: $border; alternate-background-color: $window; }
QTableView::item { padding: 2px 6px; }
QAbstractItemView { outline: 1px solid $muted; }  /* of the current cell: Fusion's lies over its text */
QScrollArea { background: transparent; border: 0; }
QScrollArea > QWidget > QWidget#scrolled { background: transparent; }
QScrollBar:vertical { background: transparent; width: 12px; margin: 0; }
QScrollBar:horizontal { background: transparent; height: 12px; margin: 0; }
QScrollBar::handle { background: $border; border-radius: 4px; min-height: 28px; min-width: 28px; margin: 2px; }
QScrollBar::handle:hover { background: $muted; }
QScrollBar::add-line, QScrollBar::sub-line, QScrollBar::add-page, QScrollBar::sub-page { background: none; width: 0; height: 0; }
QSplitter::handle { background: transparent; }
QMenuBar { background: $window; }
QMenuBar::item { padding: 4px 10px; background: transparent; }
QMenuBar::item:selected { background: $hover; }
QMenu { background: $surface; border: 1px solid $border; padding: 4px; }
QMenu::item { padding: 5px 24px; }
QMenu::item:selected { background: $hover; }
QMenu::item:disabled { color: $muted; }
QMenu::separator { height: 1px; background: $border; margin: 4px 8px; }

#banner { border: 1px solid $border; border-radius: 6px; background: $note_surface; }
#banner[level="warning"] { background: $warn_surface; border-color: $warn; }
#banner[level="error"] { background: $bad_surface; border-color: $bad; }
#dropping { border: 1px dashed $accent; }
#log, #sampleText, #tryPrompt { font-family: $mono; }
""")  # noqa: E501


def resolve_theme(choice: ThemeChoice) -> Palette:
    """The theme to show. `system` follows the desktop, where it tells; light where it does not."""
    if choice == "system":
        dark = QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark
        return DARK if dark else LIGHT
    return DARK if choice == "dark" else LIGHT


def apply_theme(application: QApplication, palette: Palette, language: Language) -> None:
    """Put font, palette and style sheet on the whole program."""
    spoken = ui_font(language)
    if spoken != application.font():  # setting it again would lay everything out again
        application.setFont(spoken)
    application.setPalette(build_qpalette(palette))
    # With a style sheet, widgets take another font of the program's up only when that changes too.
    wanted = f"/* {language} */{build_style_sheet(palette)}"
    if wanted != application.styleSheet():  # setting it again would polish every widget again
        application.setStyleSheet(wanted)


def ui_font(language: Language) -> QFont:
    """The interface font: the platform's own for Latin, its usual one for Chinese; first that of the language, for
    quotes and dashes are in both and of another width."""
    latin, chinese = (
        _LATIN_FAMILIES.get(sys.platform, ["Noto Sans"]),
        _CHINESE_FAMILIES.get(sys.platform, ["Noto Sans CJK SC"]),
    )
    chosen = QFont(QGuiApplication.font())
    families = [*chinese, *latin] if language == "zh" else [*latin, *chinese]
    chosen.setFamilies([*families, "DejaVu Sans"])
    chosen.setFeature(QFont.Tag("pwid"), int(language != "zh"))  # narrow quotes of a font that has wide ones as well
    if chosen.pointSize() < 9:
        chosen.setPointSize(9)
    return chosen


def monospace_families() -> list[str]:
    """For text as it stands, code too: letters of one width; Chinese as in the rest of the window."""
    return list(_MONOSPACE_FAMILIES.get(sys.platform, _DEFAULT_MONOSPACE_FAMILIES))


def build_style_sheet(palette: Palette) -> str:
    """The style sheet of one theme."""
    colours = {name: getattr(palette, name) for name in Palette.__slots__}
    mono = ", ".join(f'"{family}"' for family in monospace_families())
    return _STYLE_SHEET.substitute(colours, mono=mono, images=_IMAGES_DIR.as_posix())


def build_qpalette(palette: Palette) -> QPalette:
    """The palette of one theme: for what a style sheet does not reach (dialogs, placeholder text)."""
    made = QPalette()
    role = QPalette.ColorRole
    everywhere = {
        role.Window: palette.window,
        role.WindowText: palette.text,
        role.Base: palette.field,
        role.AlternateBase: palette.window,
        role.Text: palette.text,
        role.PlaceholderText: palette.muted,
        role.Button: palette.surface,
        role.ButtonText: palette.text,
        role.BrightText: palette.bad,
        role.ToolTipBase: palette.surface,
        role.ToolTipText: palette.text,
        role.Highlight: palette.accent,
        role.HighlightedText: palette.on_accent,
        role.Link: palette.accent,
        role.Mid: palette.border,
        role.Light: palette.hover,
        role.Dark: palette.border,
    }
    for which, colour in everywhere.items():
        made.setColor(which, QColor(colour))
    for which in (role.WindowText, role.Text, role.ButtonText):
        made.setColor(QPalette.ColorGroup.Disabled, which, QColor(palette.muted))
    return made
