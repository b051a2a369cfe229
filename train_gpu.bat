@echo off
setlocal DisableDelayedExpansion
rem From here, as a path with % or ^ in it does not outlive a call; train_gpu.py goes back to where one was.
set "TRAINDECK_CALLED_FROM=%CD%"
cd /d "%~dp0"
rem Foreign Python settings and places to install to must not leak in; package sources (pip.ini, PIP_INDEX_URL,
rem PIP_CERT ...) stay, they are the user's own. ASCII only: cmd reads this file in the OEM code page.
for %%v in (PYTHONHOME PYTHONPATH PYTHONSTARTUP PYTHONUSERBASE PYTHONEXECUTABLE PYTHONIOENCODING) do set "%%v="
for %%v in (CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_EXE CONDA_PYTHON_EXE CONDA_SHLVL VIRTUAL_ENV) do set "%%v="
for %%v in (PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER PIP_REQUIRE_VIRTUALENV PIP_PYTHON) do set "%%v="
set "PYTHONUTF8=1"

rem Each candidate is run: the Microsoft Store's placeholder only prints a hint and fails.
rem With .exe, for a python.bat (pyenv-win has one) would take over and never come back.
set "PY="
rem An update that was cut off may have left only the last two. home.txt: where they are, if not here.
set "APART="
if exist .venv-setup\home.txt for /f "usebackq delims=" %%h in (".venv-setup\home.txt") do call set "APART=%%h"
for %%n in (.venv .venv.old .venv.new) do (
  call :try "%%n\Scripts\python.exe"
  if defined APART call :try "%APART%\%%n\Scripts\python.exe"
)
call :try py.exe -3
call :try python.exe
call :in "%LOCALAPPDATA%\Programs\Python" Python3*
call :in "%PROGRAMFILES%" Python3*
call :in "%SYSTEMDRIVE%\." Python3*
call :in "%USERPROFILE%\.pyenv\pyenv-win\versions" 3*
call :in "%APPDATA%\uv\python" cpython-3*
call :in "%USERPROFILE%" *conda3
if not defined PY (
  echo Traindeck needs Python 3.11, 3.12 or 3.13 ^(64 bit^), and found none.
  echo Install Python 3.12 from https://www.python.org/downloads/windows/ and start train_gpu.bat again.
  call :chinese
  set "CODE=1"
  goto end
)
%PY% -I -X utf8 "%~dp0train_gpu.py" %*
set "CODE=%ERRORLEVEL%"

:end
rem Keep the words on the screen if this was double-clicked (cmd /c, no arguments) and something failed.
set "LINE=%CMDCMDLINE:"=%"
set "LINE=%LINE:"=%"
if not "%CODE%"=="0" if "%~1"=="" if not "%LINE:train_gpu.bat=%"=="%LINE%" pause
exit /b %CODE%

:try
if not defined PY %* -I -S -c "import sys; sys.exit(sys.version_info < (3, 6))" >nul 2>nul && set PY=%*
exit /b 0

:in
rem Each folder of this name there. Without a path, because a pattern in quotes is none for the cmd of Wine.
if defined PY exit /b 0
pushd %1 2>nul || exit /b 0
for /d %%d in (%2) do call :try "%%~fd\python.exe"
popd
exit /b 0

:chinese
rem The same in a console that shows Chinese: it reads the file as UTF-8, and goes back to its own code page.
for /f "tokens=2 delims=:." %%p in ('chcp') do set /a PAGE=%%p
if not "%PAGE%"=="936" exit /b 0
chcp 65001 >nul
type launcher\no_python.zh.txt
chcp %PAGE% >nul
exit /b 0
